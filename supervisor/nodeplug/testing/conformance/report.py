"""What a run of the rules found: one finding per rule, and how it is shown.

Owns: findings, the report, its text for people and its JSON for programs.
Refuses: to judge: rules do that.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from nodeplug.testing.isolation import IN_WORDS, Isolation

Style = Literal["contract", "device", "cni", "volume", "extender", "process"]
Outcome = Literal["passed", "failed", "not-applicable"]
_MARK: Final[Mapping[str, str]] = {"passed": "ok", "failed": "FAILED", "not-applicable": "-"}
STYLES: Final[tuple[Style, ...]] = ("contract", "device", "cni", "volume", "extender", "process")
_FEW: Final = 3


def few(names: Iterable[str]) -> str:
    """Name the first three and say how many more there are: `a, b, c and 29 more`. A set is sorted first."""
    given = list(names) if isinstance(names, Sequence) else sorted(names)
    rest = len(given) - _FEW
    return ", ".join(given) if rest <= 0 else f"{', '.join(given[:_FEW])} and {rest} more"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one rule.

    Attributes:
        rule: its name, such as `second-del-succeeds`.
        style: "contract", "device", "cni", "volume", "extender" or "process".
        outcome: "passed", "failed" or "not-applicable".
        expected: the rule as a sentence.
        source: who demands it, such as a section of the CNI specification.
        seen: what happened; for "not-applicable" why the rule does not apply.
        advice: what to do; empty unless it failed.
        isolation: the ways in which the daemon ran the plugin for it, "thread" and "process"; empty when the daemon was
            not needed, or the rule did not apply.
    """

    rule: str
    style: Style
    outcome: Outcome
    expected: str
    source: str
    seen: str
    advice: str = ""
    isolation: tuple[Isolation, ...] = ()

    def __str__(self) -> str:
        judged = f" ({', '.join(self.isolation)})" if self.isolation else ""
        line = f"{_MARK[self.outcome]:6} {self.rule}{judged}"
        if self.outcome != "failed":
            return f"{line}: {self.seen}" if self.seen else line
        seen = self.seen.replace("\n", "\n                 ")
        parts = ("expected", self.expected), ("demanded by", self.source), ("seen", seen), ("to do", self.advice)
        return "\n".join([line, *(f"    {word + ':':12} {text}" for word, text in parts if text)])


def merged(findings: Sequence[Finding]) -> Finding:
    """Make one finding of those about one rule in several ways to run the plugin: it failed if it failed in one."""
    ranked = ([one for one in findings if one.outcome == outcome] for outcome in ("failed", "passed", "not-applicable"))
    telling = next(found for found in ranked if found)
    judged = tuple(way for one in findings for way in one.isolation)
    texts = list(dict.fromkeys(one.seen for one in telling))
    seen = texts[-1] if telling[0].outcome == "not-applicable" else texts[0]
    if telling[0].outcome == "failed" and (len(texts) > 1 or len(telling) < len(judged)):
        seen = "\n".join(f"{''.join(f'{IN_WORDS[way]}: ' for way in one.isolation)}{one.seen}" for one in telling)
    return replace(telling[0], seen=seen, isolation=judged)


@dataclass(frozen=True, slots=True)
class Report:
    """Every finding about one plugin, in the order of the rules.

    Attributes:
        plugin: what was examined.
        findings: one per rule that was asked for.
    """

    plugin: str
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether no rule failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings of the rules that failed."""
        return tuple(finding for finding in self.findings if finding.outcome == "failed")

    def check(self) -> None:
        """Assert that no rule failed.

        Raises:
            AssertionError: with what was expected and seen, per rule that failed.
        """
        if self.failed:
            raise AssertionError("\n".join([self.summary, *map(str, self.failed)]))

    @property
    def summary(self) -> str:
        """One line: how many rules passed, failed, and did not apply."""
        counts = {outcome: sum(one.outcome == outcome for one in self.findings) for outcome in _MARK}
        return (
            f"{self.plugin}: {counts['passed']} rules passed, {counts['failed']} failed, "
            f"{counts['not-applicable']} did not apply"
        )

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __getitem__(self, rule: str) -> Finding:
        """Return the finding of a rule.

        Raises:
            KeyError: the rule was not among those that ran.
        """
        for finding in self.findings:
            if finding.rule == rule:
                return finding
        raise KeyError(rule)

    def __str__(self) -> str:
        lines = []
        for style in STYLES:
            found = [finding for finding in self.findings if finding.style == style]
            lines += [f"{style}:", *_shown(found)] if found else []
        return "\n".join([*lines, self.summary])

    def as_json(self) -> str:
        """Return one JSON object: `plugin`, `passed` and `findings`, each with the fields of `Finding`."""
        document: dict[str, Any] = {
            "plugin": self.plugin,
            "passed": self.passed,
            "findings": [asdict(finding) for finding in self.findings],
        }
        return json.dumps(document, indent=2, ensure_ascii=False)


def _shown(findings: list[Finding]) -> Iterator[str]:
    """Show findings; those that did not apply for the same reason share a line at the end."""
    skipped: dict[str, list[str]] = {}
    for finding in findings:
        if finding.outcome == "not-applicable":
            skipped.setdefault(finding.seen, []).append(finding.rule)
        else:
            yield from (f"  {line}" for line in str(finding).splitlines())
    for reason, rules in skipped.items():
        named = ", ".join(rules) if len(rules) < len(findings) else "every rule"
        yield f"  {_MARK['not-applicable']:6} {named}: {reason.partition(chr(10))[0]}"
