"""Whether the tests that execute a mutated function fail, suite by suite, and the file in which that is kept."""

import json
import os
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

from tests.mutants.copies import Copy
from tests.mutants.mapping import SUITES, Map
from tests.mutants.sample import Mutant

KILLED: Final = frozenset({"killed", "timeout"})
_ALONE: Final = 15.0
"""The cheapest tests, up to so many seconds together, run first and in one process: they notice most mutants."""
_AT_LEAST: Final = 120.0
_SLOWER: Final = 4
_FAILS: Final = frozenset({1, 2, 3, 4})


@dataclass(frozen=True)
class Verdict:
    """What one suite says of a mutant.

    Attributes:
        mutant: its key.
        suite: one of `SUITES`.
        outcome: `killed`, `timeout` (which is killed: it takes several times what the tests take), `survived`, or
            `unfinished`: not all tests could run in the time that a mutant has.
        by: the test that failed, or nothing.
        files: how many files of tests execute the function.
        seconds: how long it took.
        tests: the state of all tests, without which a mutant that survived is tried again.
    """

    mutant: str
    suite: str
    outcome: str
    by: str
    files: int
    seconds: float
    tests: str


class Verdicts:
    """All verdicts so far, a line of JSON for each.

    Args:
        path: of the file.
        tests: the state of all tests.
    """

    def __init__(self, path: Path, tests: str) -> None:
        self._path = path
        self._tests = tests
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._known = {(one.mutant, one.suite): one for one in (Verdict(**json.loads(line)) for line in lines)}

    def of(self, mutant: Mutant, suite: str) -> Verdict | None:
        """Return a verdict that still holds, or None."""
        found = self._known.get((mutant.key, suite))
        return found if found is not None and (found.outcome in KILLED or found.tests == self._tests) else None

    def add(self, verdict: Verdict) -> None:
        """Keep one more."""
        self._known[verdict.mutant, verdict.suite] = verdict
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(verdict)) + "\n")


@dataclass
class Judge:
    """Runs the tests against mutants, in a copy.

    Attributes:
        copy: the copy.
        map: which tests to run.
        numbers: of functions, by source and line.
        tests: all files of tests, with the hash of each.
        state: of all tests.
    """

    copy: Copy
    map: Map
    numbers: Mapping[str, Mapping[int, int]]
    tests: Mapping[str, str]
    state: str

    def judge(self, mutant: Mutant, suite: str, seconds: float) -> Verdict:
        """Run the tests of one suite against a mutant.

        Args:
            mutant: the mutant.
            suite: one of `SUITES`.
            seconds: how long it may take.
        """
        of_module = self.numbers[mutant.path]
        number = of_module[mutant.mutation.function]
        files = self.map.executing(suite, number, of_module.values(), self.tests)
        source = (self.copy.root / mutant.path).read_bytes()
        began = time.monotonic()
        self.copy.write(mutant.path, mutant.mutation.apply(source))
        try:
            outcome, by = self._try(suite, files, began + seconds) if files else ("survived", "")
        finally:
            self.copy.write(mutant.path, source)
        took = round(time.monotonic() - began, 1)
        return Verdict(mutant.key, suite, outcome, by, len(files), took, self.state)

    def _try(self, suite: str, files: Sequence[str], until: float) -> tuple[str, str]:
        """Return the outcome and the test that failed, the cheapest files first."""
        seconds = [self.map.suites[suite][file].seconds for file in files]
        cheap = bisect_left(list(accumulate(seconds)), _ALONE)
        for some, side_by_side in ((files[:cheap], ()), (files[cheap:], self.copy.parallel)):
            # pytest 9.1 loses the fixtures of a folder to which its arguments come back.
            outcome, by = self._run(suite, sorted(some), side_by_side, until) if some else ("survived", "")
            if outcome != "survived":
                break
        return outcome, by

    def _run(self, suite: str, files: Sequence[str], side_by_side: Sequence[str], until: float) -> tuple[str, str]:
        """Return the outcome and the test that failed, twice: one that passes the second time says nothing."""
        known = [self.map.suites[suite][file] for file in files]
        spoiled = [test for one in known for test in one.failed]
        expected = sum(one.seconds for one in known)
        usual = _AT_LEAST + _SLOWER * expected / (os.cpu_count() or 1 if side_by_side else 1)
        while True:
            options = ["-x", "-m", SUITES[suite], *side_by_side, *(f"--deselect={test}" for test in spoiled)]
            left = until - time.monotonic()
            status = self.copy.test(files, options, max(1.0, min(usual, left)))
            if status is None:
                return ("timeout" if usual <= left else "unfinished"), ""
            if status not in _FAILS:
                return "survived", ""
            failed = self._failed()
            again = failed and self.copy.test(failed, ["-x", "-m", SUITES[suite]], usual)
            if not failed or again is None or again in _FAILS:
                return "killed", (self._failed() or failed or ["nothing could be run"])[0]
            spoiled += failed

    def _failed(self) -> list[str]:
        notes = map(json.loads, self.copy.notes.read_text(encoding="utf-8").splitlines())
        return [note["test"] for note in notes if note["failed"]]
