"""Runtimes and pods of one test, which end with it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nodeplug import mounted_at
from nodeplug.testing.pods import CniRuntimeFactory


def test_sandboxes_are_gone_when_the_test_has_ended(tmp_path: Path) -> None:
    node: Any = SimpleNamespace(root=tmp_path)
    factory = CniRuntimeFactory(node)
    made = [factory.sandbox(name).path for name in ("one", "two")]
    assert all(mounted_at(str(path)) for path in made)
    factory.close()
    assert [path for path in made if path.exists() or mounted_at(str(path))] == []
