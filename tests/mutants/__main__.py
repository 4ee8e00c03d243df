"""Change the code in small ways, and see whether the tests notice: `python -m tests.mutants --seed 1 --count 100`.

The last commit of this checkout is copied, and only the copy is changed. Everything is kept: what was interrupted goes
on where it stopped, and after a commit only what it concerns is done again.
"""

import argparse
import fcntl
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.copies import Copy
from tests.mutants.judging import KILLED, Judge, Verdicts
from tests.mutants.mapping import SUITES, Map, complete, is_mutated, key_of, number
from tests.mutants.report import report
from tests.mutants.sample import Mutant, choose

_ROOT = Path(__file__).parents[2]
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "nodeplug" / "mutants"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Try whether tests notice changes.")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--count", type=int, default=100, help="how many mutants")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one mutant")
    parser.add_argument("--only", default="", help="mutate only sources whose path begins so")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="use only tests below these paths")
    parser.add_argument("--suite", choices=[*SUITES, "both"], default="both", help="of the tests")
    parser.add_argument("--report", action="store_true", help="run nothing, tell what is known")
    folder = Path(f"/var/tmp/nodeplug-mutants-{os.geteuid()}")
    parser.add_argument("--folder", type=Path, default=folder, help="where the copy is; others must be able to read it")
    workers = (os.cpu_count() or 1) + 2
    parser.add_argument("--workers", type=int, default=workers, help="how many processes run tests")
    return parser.parse_args()


def _prepared(folder: Path, workers: int) -> Copy:
    """Make the copy, in a folder that nobody else has put there."""
    if shutil.which("git") is None:
        raise SystemExit("git is missing, which gives the last commit: apt-get install git")
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise SystemExit(f"{folder} belongs to somebody else; name another with --folder")
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)  # until this process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(f"somebody is trying mutants in {folder} already; name another with --folder") from None
    copy = Copy(folder / "checkout", _ROOT, workers)
    copy.make()
    return copy


def _try(sample: Sequence[Mutant], suite: str, judge: Judge, verdicts: Verdicts, limit: float) -> None:
    complete(judge.map, suite, judge.tests, judge.copy)
    for place, mutant in enumerate(sample, 1):
        known = [one for name in SUITES if (one := verdicts.of(mutant, name))]
        if verdicts.of(mutant, suite) or any(one.outcome in KILLED for one in known):
            continue
        verdict = judge.judge(mutant, suite, limit - sum(one.seconds for one in known))
        verdicts.add(verdict)
        where = f"{mutant.path}:{mutant.mutation.line} ({mutant.mutation.kind})"
        said = f"{verdict.outcome} in the {suite} suite after {verdict.seconds:.0f} s {verdict.by}"
        print(f"{place} of {len(sample)}: {where}: {said}", flush=True)


def main() -> None:
    """Do all that is left to do, and print the report."""
    arguments = _arguments()
    copy = _prepared(arguments.folder, arguments.workers)
    objects = {path: content for path, content in copy.objects("supervisor", "plugins").items() if is_mutated(path)}
    sources = {
        path: (content, (copy.root / path).read_bytes())
        for path, content in objects.items()
        if path.startswith(arguments.only)
    }
    sample = choose(sources, arguments.seed, arguments.count)
    print(f"{len(sample)} mutants, chosen with the seed {arguments.seed}, in {copy.root}", flush=True)
    tests = copy.objects(*arguments.tests)
    files = {path: content for path, content in tests.items() if Path(path).match("test_*.py")}
    if not sample or not files:
        raise SystemExit("the last commit has no such sources or tests")
    _CACHE.mkdir(parents=True, exist_ok=True)
    state = key_of(tests)
    verdicts = Verdicts(_CACHE / "verdicts.jsonl", state)
    judge = Judge(copy, Map(_CACHE / f"map-{key_of(objects)}.json", state), number(copy), files, state)
    suites = [suite for suite in SUITES if arguments.suite in {suite, "both"}]
    for suite in [] if arguments.report else suites:
        _try(sample, suite, judge, verdicts, arguments.limit)
    for line in report(sample, verdicts, lambda mutant: mutant.difference(sources[mutant.path][1])):
        print(line)


if __name__ == "__main__":
    main()
