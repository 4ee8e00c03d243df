"""Mount namespaces come from one place, which alone knows what to do where `/` is not a mount point."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
ONE = REPOSITORY / "supervisor" / "nodeplug" / "testing" / "namespaces.py"


def test_one_module_alone_chooses_the_propagation_of_a_new_namespace() -> None:
    sources = [path for folder in ("supervisor", "plugins", "bench") for path in (REPOSITORY / folder).rglob("*.py")]
    assert [path for path in sources if "--propagation" in path.read_text(encoding="utf-8")] == [ONE]
