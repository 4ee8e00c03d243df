"""The map: which files of tests execute each function, in which suite, and how long they take.

It is kept in a file, written after each few files of tests. It holds for as long as the sources are the same; a file of
tests that changes is run again.
"""

import ast
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tests.mutants.copies import Copy
from tests.mutants.mutations import functions

SUITES: Final[Mapping[str, str]] = {"quick": "quick", "rest": "not quick and not soak and not matrix"}
"""What pytest's `-m` is given."""
EXECUTED_AS_FILES: Final = frozenset(
    {"entering.py", "fork_server.py", "launch.py", "launching.py", "standby.py", "hook.py", "own_hook.py"}
)
"""Run from their source, by whatever Python; nothing tells which tests do."""
_LEFT_OUT: Final = ("supervisor/nodeplug/pb/", "supervisor/pytest_nodeplug.py")
_AT_ONCE: Final = 24
_BROKEN: Final = frozenset({3, 4})
"""Internal errors and errors of usage, by pytest's exit status."""
_HOUR: Final = 3600.0


def is_mutated(path: str) -> bool:
    """Tell whether mutants are made of a source."""
    return path.endswith(".py") and not path.startswith(_LEFT_OUT) and Path(path).name not in EXECUTED_AS_FILES


def number(copy: Copy) -> Mapping[str, Mapping[int, int]]:
    """Return a number for each function, by the path of its source and the line of its `def`."""
    numbers: dict[str, dict[int, int]] = {}
    count = 0
    for path in sorted(filter(is_mutated, copy.objects("supervisor", "plugins"))):
        lines = sorted(function.lineno for function in functions(ast.parse((copy.root / path).read_bytes())))
        numbers[path] = {line: count + place for place, line in enumerate(lines)}
        count += len(lines)
    return numbers


def key_of(objects: Mapping[str, str]) -> str:
    """Return a short name for the contents of files."""
    return sha256(repr(sorted(objects.items())).encode()).hexdigest()[:16]


@dataclass
class Mapped:
    """What one suite of one file of tests does.

    Attributes:
        content: the hash of the file.
        seconds: how long it took.
        failed: the tests that failed although nothing was changed.
        functions: the numbers of those that it executes.
        tests: the state of all tests then; where something failed, another state may be better.
    """

    content: str
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)
    functions: list[int] = field(default_factory=list)
    tests: str = ""


class Map:
    """The map of one state of the sources.

    Args:
        path: of its file, which need not be there.
        tests: the state of all tests.
    """

    def __init__(self, path: Path, tests: str) -> None:
        self._path = path
        self._tests = tests
        stored: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.suites = {suite: {name: Mapped(**one) for name, one in stored.get(suite, {}).items()} for suite in SUITES}

    def missing(self, suite: str, files: Mapping[str, str]) -> list[str]:
        """Return the files of tests that were not run as they are.

        Args:
            suite: one of `SUITES`.
            files: the hash of each one's content.
        """
        return [name for name, content in files.items() if not self._holds(self.suites[suite].get(name), content)]

    def _holds(self, known: Mapped | None, content: str) -> bool:
        """Tell whether a file need not run again."""
        if known is None or known.content != content:
            return False
        return not known.failed or known.tests == self._tests

    def executing(self, suite: str, number: int, beside: Iterable[int], files: Iterable[str]) -> list[str]:
        """Return the files of tests that execute a function, the cheapest first.

        Args:
            suite: one of `SUITES`.
            number: of the function.
            beside: the numbers of all functions of its module. If no test executes it, it may be needed only while
                modules are imported, which counts for no test: then those that execute the module are returned.
            files: of tests, out of which to choose.
        """
        known = {name: self.suites[suite][name] for name in files if name in self.suites[suite]}
        found = [name for name, one in known.items() if number in one.functions]
        if not found and not any(number in one.functions for all_ in self.suites.values() for one in all_.values()):
            wanted = set(beside)
            found = [name for name, one in known.items() if not wanted.isdisjoint(one.functions)]
        return sorted(found, key=lambda name: (known[name].seconds, name))

    def add(self, suite: str, contents: Mapping[str, str], copy: Copy) -> None:
        """Take in what a run of some files of tests left in a copy, and write the map."""
        executed: dict[str, set[int]] = defaultdict(set)
        for of, file, number in copy.seen():
            if of == suite:
                executed[file].add(number)
        run = {file: Mapped(content) for file, content in contents.items()}
        for file, one in run.items():
            one.functions, one.tests = sorted(executed[file]), self._tests
        for line in copy.notes.read_text(encoding="utf-8").splitlines():
            note = json.loads(line)
            if note["file"] in run:
                run[note["file"]].seconds += note["seconds"]
                run[note["file"]].failed += [note["test"]] if note["failed"] else []
        self.suites[suite] |= run
        stored = {name: {file: vars(one) for file, one in files.items()} for name, files in self.suites.items()}
        written = self._path.with_suffix(".new")
        written.write_text(json.dumps(stored), encoding="utf-8")
        written.replace(self._path)


def complete(map_: Map, suite: str, files: Mapping[str, str], copy: Copy) -> None:
    """Run the files of tests that the map lacks, a few at a time; fewer where a few take longer than an hour.

    Raises:
        SystemExit: pytest runs nothing, or one file takes longer than an hour.
    """
    missing = map_.missing(suite, files)
    if not missing:
        return
    copy.instrument(number(copy))
    waiting = [missing[first : first + _AT_ONCE] for first in range(0, len(missing), _AT_ONCE)]
    while waiting:
        some = waiting.pop(0)
        status = copy.test(some, ["-m", SUITES[suite], *copy.parallel], _HOUR)
        if status in _BROKEN:
            raise SystemExit(f"pytest runs nothing in {copy.root}: see {copy.output}")
        if status is None:  # what they execute is known in part
            if len(some) == 1:
                raise SystemExit(f"{some[0]} takes longer than an hour: see {copy.output}")
            waiting[:0] = [some[: len(some) // 2], some[len(some) // 2 :]]
            continue
        map_.add(suite, {name: files[name] for name in some}, copy)
        done = len(missing) - sum(map(len, waiting))
        print(f"map of the {suite} suite: {done} of {len(missing)} files of tests", flush=True)
    copy.plain()
    spoiled = [test for file in missing for test in map_.suites[suite][file].failed]
    if spoiled:
        print(f"{len(spoiled)} tests fail although nothing is changed, and are left out:", *spoiled, sep="\n    ")
