"""Play the quick tests that could meet a program of the machine, without that program: `python -m tests.hidden RECORD`.

RECORD is a file that `pytest -m quick --programs RECORD` wrote: which programs each test declares and executes. The
programs of one package are hidden together, one package after the other, and then all programs at once. A test that
needs one is skipped with a reason. The exit status is 1 if a test fails. Needs root.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.programs import PACKAGES, canonical, path_of

_ROOT = Path(__file__).parents[1]


def tests_by_package(record: Path) -> Mapping[str, set[str]]:
    """Return the tests that declare or execute a program of each package.

    Args:
        record: as `pytest --programs` writes it.
    """
    files = {canonical(path): name for name in PACKAGES if (path := path_of(name)) is not None}
    found = defaultdict(set)
    for line in record.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        for name in [*one["declares"], *(files[path] for path in one["executes"] if path in files)]:
            found[PACKAGES[name]].add(one["test"].partition("@")[0])
    return found


def play(programs: list[str], tests: set[str]) -> tuple[int, str]:
    """Run tests without some programs; return pytest's exit status and what it printed."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as arguments:
        arguments.write("\n".join(sorted(tests)))
        arguments.flush()
        options = ["-q", "-p", "no:cacheprovider", "-m", "quick", "--without", ",".join(programs)]
        command = [sys.executable, "-m", "pytest", *options, f"@{arguments.name}"]
        # Where everything is supposed to be there a skip is a failure; here it is what is wanted.
        environment = {name: value for name, value in os.environ.items() if name != "NODEPLUG_CI"}
        done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def runs(record: Path) -> Iterator[tuple[list[str], set[str]]]:
    """Return the programs and the tests of each run, the longest first."""
    by_package = tests_by_package(record)
    yield list(PACKAGES), set().union(*by_package.values())
    for package, tests in sorted(by_package.items(), key=lambda run: -len(run[1])):
        yield [name for name, of in PACKAGES.items() if of == package], tests


def main(record: Path) -> int:
    """Play all runs, two at a time; print what each came to."""
    planned = list(runs(record))
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda run: play(*run), planned))
    for (programs, tests), (status, said) in zip(planned, outcomes, strict=True):
        *_, summary = said.strip().splitlines() or [""]
        print(f"without {', '.join(programs)}: {len(tests)} tests: {summary}")
        if status != 0:
            print(said)
    return int(any(status for status, _ in outcomes))


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]).absolute()))
