"""Does a plugin keep the rules that its callers rely on?

    report = conformance(Fuse)
    report.check()

Owns: running rules one by one against a plugin and putting the findings together.
Refuses: the rules themselves: `contract`, `device`, `device_pools`, `grants`, `grants_by_claim`, `cni`,
`volume`, `csi`, `provisioning`, `extender` and `process` have them.

The plugin runs in the real daemon, a process of its own in a scratch folder, and is called through real sockets and
executables, in network namespaces of the run. What belongs to the machine is not touched, as long as the plugin's
configuration stays below `{scratch}`.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nodeplug.contract.values import Secrets
from nodeplug.testing.conformance import cni as _cni
from nodeplug.testing.conformance import contract as _contract
from nodeplug.testing.conformance import csi as _csi
from nodeplug.testing.conformance import device as _device
from nodeplug.testing.conformance import device_pools as _device_pools
from nodeplug.testing.conformance import extender as _extender
from nodeplug.testing.conformance import grants as _grants
from nodeplug.testing.conformance import grants_by_claim as _grants_by_claim
from nodeplug.testing.conformance import process as _process
from nodeplug.testing.conformance import provisioning as _provisioning
from nodeplug.testing.conformance import volume as _volume
from nodeplug.testing.conformance.examination import Examination
from nodeplug.testing.conformance.report import Finding, Outcome, Report, merged
from nodeplug.testing.conformance.rules import RULES, Rule, choose, require
from nodeplug.testing.conformance.subject import describe
from nodeplug.testing.conformance.verdict import Broken, NotApplicable
from nodeplug.testing.isolation import Isolations, isolations
from nodeplug.volumes.masking import redact

_ROOMS = (
    _contract,
    _device,
    _device_pools,
    _grants,
    _grants_by_claim,
    _cni,
    _volume,
    _csi,
    _provisioning,
    _extender,
    _process,
)
"""Importing a room registers its rules, and their names are in the order in which rules of one style run."""

__all__ = ["RULES", "Finding", "Outcome", "Report", "Rule", "conformance"]


def conformance(
    plugin: type[Any] | str,
    config: Mapping[str, Any] | None = None,
    *,
    cni: Mapping[str, Any] | None = None,
    volume_options: Mapping[str, str] | None = None,
    secrets: Mapping[str, bytes] | None = None,
    keeps_data: bool | None = None,
    extender: Mapping[str, Any] | None = None,
    beside: Mapping[str, Mapping[str, Any]] | None = None,
    isolation: Isolations = "both",
    rules: Sequence[str] | None = None,
    patience: float = 10.0,
    progress: Callable[[Finding], None] = lambda _: None,
) -> Report:
    """Run every rule that applies to a plugin.

    What is left out is taken from the class's own attribute `example`, a mapping with the same keys. `{scratch}` in any
    text stands for an empty folder of the run.

    Args:
        plugin: a class at the top level of a module, an entry-point name, or `module:Class`.
        config: its `[plugins.<name>.config]`.
        cni: a network list or one network configuration to attach containers to; without it, the claim alone.
        volume_options: the options of a FlexVolume to mount.
        secrets: of the FlexVolume's Secret.
        keeps_data: whether data of a volume must be there after its last pod has gone.
        extender: what an extender is asked about: `pod`, a v1 Pod, and `nodes`, names or v1 Nodes by name.
        beside: more `[plugins.<name>]` sections by name, such as `{"host-local": {"config": {...}}}`.
        isolation: how the daemon runs the plugin: in a thread, in a process of its own, or in both ways, one after the
            other; a rule is kept if it is kept in each.
        rules: the names of the rules to run; all by default.
        patience: seconds for whatever should be quick, such as a constructor; a busy machine gets more.
        progress: called with each finding as it is made.

    Returns:
        One finding per rule.

    Raises:
        PluginError: the plugin cannot be found, or there is no such rule or isolation.
    """
    given = {
        "config": config,
        "cni": cni,
        "volume_options": volume_options,
        "secrets": secrets,
        "keeps_data": keeps_data,
        "extender": extender,
        "beside": beside,
    }
    subject = describe(plugin, given)
    chosen, ways = choose(None if rules is None else tuple(rules)), isolations(isolation)
    found: dict[str, list[Finding]] = {one.name: [] for one in chosen}
    with (
        tempfile.TemporaryDirectory(prefix="np-", dir="/tmp") as folder,
        Examination(subject, Path(folder), patience) as exam,
    ):
        for way in ways:
            settled = [one for one in _newest(found) if one.outcome != "not-applicable" and not one.isolation]
            exam.turn(way, {one.rule for one in settled if one.outcome == "failed"})
            for one in chosen:
                if one.name not in {finding.rule for finding in settled}:
                    seen = _find(one, exam)
                    found[one.name].append(replace(seen, seen=redact(seen.seen, Secrets(subject.secrets))))
                    progress(found[one.name][-1])
    return Report(subject.uses, tuple(merged(found[one.name]) for one in chosen))


def _newest(found: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    return [findings[-1] for findings in found.values() if findings]


def _find(one: Rule, exam: Examination) -> Finding:
    exam.asked = False
    outcome: Outcome
    try:
        exam.require_isolation(one.isolation)
        exam.require_loaded(one.style)
        require(one, exam.claims, exam.hooks)
        outcome, seen = "passed", one.judge(exam)
    except NotApplicable as reason:
        return Finding(one.name, one.style, "not-applicable", one.expected, one.source, str(reason))
    except Exception as error:
        # What a broken plugin left on the node must not reach the next rule.
        exam.renew()
        exam.failed.add(one.name)
        outcome, seen = "failed", str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}"
    advice = one.advice if outcome == "failed" else ""
    isolation = (exam.isolation,) if exam.asked else ()
    return Finding(one.name, one.style, outcome, one.expected, one.source, seen, advice, isolation)
