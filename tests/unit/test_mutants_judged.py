"""How a mutant is judged, by runs of pytest that are acted out."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.mutants.judging import Judge, Verdict
from tests.mutants.mapping import Map, Mapped
from tests.mutants.mutations import find
from tests.mutants.sample import Mutant

PATH = "supervisor/nodeplug/cni/code.py"
SOURCE = b"def f():\n    return 5\n"
MUTANT = Mutant("cni", PATH, "1", next(one for one in find(SOURCE) if one.text == "6"))
PASSED, FAILED = 0, 1
Run = tuple[int | None, list[str]]


class ActedCopy:
    """A copy whose runs of pytest have the given statuses and failed tests."""

    parallel = ("-n", "2")

    def __init__(self, root: Path, runs: Sequence[Run]) -> None:
        self.root = root
        self.notes = root / "notes"
        self.asked: list[tuple[list[str], list[str]]] = []
        self.content = SOURCE
        self.tried = b""
        self._runs = list(runs)
        (root / PATH).parent.mkdir(parents=True)
        (root / PATH).write_bytes(SOURCE)

    def write(self, path: str, content: bytes) -> None:
        assert path == PATH
        self.content = content

    def test(self, files: Sequence[str], options: Sequence[str], timeout: float) -> int | None:
        self.asked.append((list(files), list(options)))
        self.tried = self.content
        status, failed = self._runs.pop(0)
        self.notes.write_text("".join(json.dumps({"test": name, "failed": True}) + "\n" for name in failed))
        return status


class Court:
    def __init__(self, root: Path) -> None:
        self._root = root
        self.seconds = 600.0
        self.costs = {"a.py": 1.0, "b.py": 2.0}
        self.failing: list[str] = []

    def judge(self, *runs: Run) -> tuple[Verdict, ActedCopy]:
        copy = ActedCopy(self._root, runs)
        known = Map(self._root / "map.json", "now")
        known.suites["quick"] = {name: Mapped("1", cost, self.failing, [7]) for name, cost in self.costs.items()}
        judge = Judge(copy, known, {PATH: {1: 7}}, {"a.py": "1", "b.py": "1"}, "now")  # type: ignore[arg-type]
        return judge.judge(MUTANT, "quick", self.seconds), copy


@pytest.fixture
def court(tmp_path: Path) -> Court:
    return Court(tmp_path)


def test_a_test_that_fails_twice_kills(court: Court) -> None:
    verdict, copy = court.judge((FAILED, ["b.py::t"]), (FAILED, ["b.py::t"]))
    assert (verdict.outcome, verdict.by, verdict.files) == ("killed", "b.py::t", 2)
    assert [files for files, _ in copy.asked] == [["a.py", "b.py"], ["b.py::t"]]


def test_a_test_that_fails_once_is_left_out_of_another_run(court: Court) -> None:
    verdict, copy = court.judge((FAILED, ["b.py::t"]), (PASSED, []), (PASSED, []))
    assert verdict.outcome == "survived"
    assert "--deselect=b.py::t" in copy.asked[2][1]


def test_a_test_that_fails_without_a_change_is_left_out(court: Court) -> None:
    court.failing = ["a.py::broken"]
    _, copy = court.judge((PASSED, []))
    assert "--deselect=a.py::broken" in copy.asked[0][1]


def test_code_that_cannot_be_imported_is_killed_at_once(court: Court) -> None:
    verdict, copy = court.judge((4, []))
    assert verdict.outcome == "killed"
    assert len(copy.asked) == 1


def test_tests_that_take_far_longer_than_usual_kill(court: Court) -> None:
    assert court.judge((None, []))[0].outcome == "timeout"


def test_a_mutant_without_time_for_all_its_tests_is_unfinished(court: Court) -> None:
    court.costs = {"a.py": 5000.0}
    verdict, copy = court.judge((None, []))
    assert verdict.outcome == "unfinished"
    assert "-n" in copy.asked[0][1]


def test_a_mutant_that_no_test_executes_survives_without_a_run(court: Court) -> None:
    court.costs = {}
    verdict, copy = court.judge()
    assert (verdict.outcome, verdict.files, copy.asked) == ("survived", 0, [])


def test_the_source_is_changed_for_the_tests_alone(court: Court) -> None:
    _, copy = court.judge((PASSED, []))
    assert copy.tried == b"def f():\n    return 6\n"
    assert copy.content == SOURCE
