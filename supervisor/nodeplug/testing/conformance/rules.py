"""The registry of rules.

Owns: what a rule is, its name, and when it does not apply.
Refuses: to run one: `conformance` brings rule and plugin together.

A rule is one small function. Its name is the rule's name, its docstring's first paragraph is what is expected; it
answers what it saw, and raises `Broken` or `NotApplicable` otherwise.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from nodeplug.contract.errors import PluginError
from nodeplug.testing.conformance.examination import Examination
from nodeplug.testing.conformance.report import STYLES, Style
from nodeplug.testing.conformance.verdict import NotApplicable
from nodeplug.testing.isolation import ISOLATIONS, Isolation

Judge = Callable[[Examination], str]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        name: in kebab case; stable.
        style: "contract" and "process" hold for every plugin, the others for plugins with a claim of that kind.
        expected: the rule as a sentence.
        source: who demands it.
        advice: what to do when it is broken.
        judge: looks, and answers what it saw.
        hooks: the rule applies to plugins that have all of these.
        root: whether judging takes root.
        isolation: the ways to run the plugin in which it is judged.
    """

    name: str
    style: Style
    expected: str
    source: str
    advice: str
    judge: Judge
    hooks: tuple[str, ...] = ()
    root: bool = False
    isolation: tuple[Isolation, ...] = ISOLATIONS


RULES: Final[dict[str, Rule]] = {}
"""Every rule by name; `choose` puts them into the order in which they run."""
NEEDS_ROOT: Final = "it needs root: run it as root to know"
_ROOTED: Final = frozenset({"cni", "volume"})


def rule(
    style: Style,
    source: str,
    advice: str,
    *hooks: str,
    root: bool | None = None,
    isolation: tuple[Isolation, ...] = ISOLATIONS,
) -> Callable[[Judge], Judge]:
    """Make a function a rule.

    Args:
        style: see `Rule`.
        source: see `Rule`.
        advice: see `Rule`.
        hooks: see `Rule`.
        root: by default rules for networks and volumes take root, as namespaces and mounts do.
        isolation: see `Rule`.
    """

    def register(judge: Judge) -> Judge:
        name = judge.__name__.replace("_", "-")
        expected = " ".join((inspect.getdoc(judge) or "").split("\n\n")[0].split())
        if not expected or name in RULES:
            raise ValueError(f"the rule {name!r} has no docstring, or there are two of this name")
        rooted = style in _ROOTED if root is None else root
        RULES[name] = Rule(name, style, expected, source, advice, judge, hooks, rooted, isolation)
        return judge

    return register


def choose(names: tuple[str, ...] | None) -> tuple[Rule, ...]:
    """Return the named rules in the order in which they run, or all.

    Raises:
        PluginError: there is no rule of that name.
    """
    unknown = sorted(set(names or ()) - RULES.keys())
    if unknown:
        raise PluginError(f"there is no rule {', '.join(unknown)}; `nodeplug verify --list` shows every rule")
    wanted = [one for name, one in RULES.items() if names is None or name in names]
    return tuple(sorted(wanted, key=lambda one: STYLES.index(one.style)))


def require(one: Rule, claimed: Mapping[str, tuple[str, ...]], hooks: frozenset[str]) -> None:
    """Refuse a rule that does not apply.

    Args:
        one: the rule.
        claimed: the plugin's claims by kind.
        hooks: its hooks.

    Raises:
        NotApplicable: the message says why.
    """
    if one.style not in ("contract", "process") and not claimed.get(one.style):
        raise NotApplicable(f"the plugin has no {one.style} claim")
    missing = [hook for hook in one.hooks if hook not in hooks]
    if missing:
        raise NotApplicable(f"the plugin has no {missing[0]}")
    if one.root and os.geteuid() != 0:
        raise NotApplicable(NEEDS_ROOT)
