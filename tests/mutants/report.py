"""What a sample came to: a table by room, and each mutant that survived."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from tests.mutants.judging import KILLED, Verdicts
from tests.mutants.sample import Mutant


def fate(mutant: Mutant, verdicts: Verdicts) -> str:
    """Return the suite that killed a mutant, else `survived`, `unfinished`, or `open` if it was not tried."""
    quick, rest = (verdicts.of(mutant, suite) for suite in ("quick", "rest"))
    if quick is not None and quick.outcome in KILLED:
        return "quick"
    if rest is not None and rest.outcome in KILLED:
        return "rest"
    if quick is None or rest is None:
        return "open"
    return "unfinished" if "unfinished" in {quick.outcome, rest.outcome} else "survived"


def report(sample: Sequence[Mutant], verdicts: Verdicts, difference: Callable[[Mutant], str]) -> Iterator[str]:
    """Return the lines to print.

    Args:
        sample: all mutants.
        verdicts: what the suites said.
        difference: tells the change of a mutant.
    """
    fates = {mutant: fate(mutant, verdicts) for mutant in sample}
    for mutant, one in fates.items():
        if one in {"survived", "unfinished"}:
            files = [said.files for suite in ("quick", "rest") if (said := verdicts.of(mutant, suite))]
            yield f"{one}: {mutant.path}:{mutant.mutation.line}; {sum(files)} files of tests were tried"
            yield difference(mutant)
    columns = ("quick", "rest", "survived", "unfinished", "open")
    yield f"{'room':20}{'mutants':>10}" + "".join(f"{name:>12}" for name in columns)
    for room in [*sorted({mutant.room for mutant in sample}), "all"]:
        count = Counter(one for mutant, one in fates.items() if room in {mutant.room, "all"})
        yield f"{room:20}{count.total():>10}" + "".join(f"{count[name]:>12}" for name in columns)
    count = Counter(fates.values())
    if killed := count["quick"] + count["rest"]:
        yield f"the quick suite kills {count['quick']} of the {killed} that tests kill: {count['quick'] / killed:.0%}"
