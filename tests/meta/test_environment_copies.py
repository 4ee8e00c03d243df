"""One function copies the environment: other ways fail when a thread deletes a variable meanwhile."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPY = ROOT / "supervisor" / "nodeplug" / "process" / "environment.py"
OTHER = re.compile(r"\*\*os\.environ|(?<!`)dict\(os\.environ|os\.environ(\.items|\.copy|\.values| \|)")


def test_nothing_copies_the_environment_in_another_way() -> None:
    sources = {*ROOT.glob("supervisor/**/*.py"), *ROOT.glob("plugins/**/*.py")} - {COPY}
    assert [str(path) for path in sources if OTHER.search(path.read_text())] == []
    assert len(sources) > 100
