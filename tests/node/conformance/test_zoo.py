"""Every rule catches a plugin that breaks it, and lets a plugin pass that does not."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nodeplug.testing import Report
from nodeplug.testing.conformance import RULES, conformance
from nodeplug.testing.processes import MARK

ZOO = Path(__file__).parent / "zoo"
DEVICES = {"zoo_provisioning:Raw", "zoo_provisioning:WipesDevices"}
PROGRAMS = {plugin: pytest.mark.programs("losetup") for plugin in DEVICES}
COSTLY = dict.fromkeys(("zoo_claims:Tame", "zoo_cni:Tame", "zoo_volume:Tame"), pytest.mark.whole)
"""By plugin that costs five seconds of CPU time and more."""
UNBUNDLED = {"zoo_volume:Attached", "zoo_volume:Renews", "zoo_volume:Inline", "zoo_volume:Reads"}
PARTS: dict[str, dict[str, Any]] = {
    "zoo_device:Tame": {"rules": ["contract", "device", "device_pools", "grants", "process"]},
    "zoo_claims:Tame": {"rules": ["device_pools", "grants_by_claim"]},
    "zoo_cni:Tame": {"rules": ["cni"]},
    "zoo_volume:Tame": {"rules": ["volume", "csi"]},
    "zoo_volume:Attached": {
        "rules": ["attach-is-repeatable", "detach-is-repeatable", "attached-volumes-are-known", "waiting-is-repeatable"]
    },
    "zoo_volume:Renews": {"rules": ["refresh-keeps-the-mount"]},
    "zoo_extender:Tame": {"rules": ["extender"]},
    "zoo_provisioning:Maker": {"rules": ["provisioning"]},
    "zoo_provisioning:Raw": {"rules": ["a-block-volume-keeps-its-bytes"]},
    "zoo_process:Tame": {"rules": ["process"], "isolation": "process"},
}
"""By plugin that breaks no rule, the rules that it is there for, by name or by the module that has them."""


def _marks(plugin: str) -> list[pytest.MarkDecorator]:
    return [marks[plugin] for marks in (PROGRAMS, COSTLY) if plugin in marks]


HOUSES = sorted(path.stem for path in ZOO.glob("zoo_*.py"))


@pytest.fixture(scope="module")
def _path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ZOO))
        yield


@pytest.fixture(autouse=True)
def _needed(request: pytest.FixtureRequest) -> None:
    spec = getattr(request.node, "callspec", None)
    if spec is not None and DEVICES & {spec.params.get("plugin"), spec.params.get("part")}:
        request.getfixturevalue("has_loop_devices")


def asked(params: dict[str, Any]) -> dict[str, Any]:
    """Say what the run for a test is asked for.

    One way to run a plugin is enough to see its rule broken. All rules are judged of a process; plugins like the tame
    ones that keep them as a thread, too, are in `test_bundled`, but for the hooks that no bundled plugin has.
    """
    if "part" in params:
        part = PARTS[params["part"]]
        return {"plugin": params["part"], "isolation": "thread", **part, "rules": named(part["rules"])}
    if "rule" not in params:
        isolation = "both" if params["plugin"] in UNBUNDLED else "process"
        return {"plugin": params["plugin"], "isolation": isolation}
    rule = RULES[params["rule"]]
    return {"plugin": params["plugin"], "rules": [rule.name], "patience": 2.0, "isolation": rule.isolation[0]}


def named(rules: list[str]) -> list[str]:
    """Return the names of rules, for a module those of all of its."""
    return [name for name, rule in RULES.items() if {name, rule.judge.__module__.rpartition(".")[2]} & set(rules)]


def _animals() -> list[tuple[str, str, str]]:
    """Each plugin of the zoo with the rule that it breaks and a part of what is seen then."""
    sys.path.insert(0, str(ZOO))
    try:
        modules = [importlib.import_module(house) for house in HOUSES]
    finally:
        sys.path.remove(str(ZOO))
    found: list[tuple[str, str, str]] = []
    for module in modules:
        for name, cls in vars(module).items():
            breaks: Any = vars(cls).get("breaks") if isinstance(cls, type) else None
            if breaks is not None:
                found.append((f"{module.__name__}:{name}", *breaks))
    return found


ANIMALS = _animals()
OF_THE_HOUSE = {house: [rule for plugin, rule, _ in ANIMALS if plugin.startswith(f"{house}:")] for house in HOUSES}
QUICK = {rule for rules in OF_THE_HOUSE.values() for rule in rules[:3]} - {"idle-plugin-rests", "memory-stays-bounded"}
"""Rules that the quick suite sees broken: some of each style."""


@pytest.mark.parametrize(
    ("plugin", "rule", "seen"),
    [
        pytest.param(
            plugin, rule, seen, marks=[*_marks(plugin), *([] if rule in QUICK else [pytest.mark.whole])], id=rule
        )
        for plugin, rule, seen in ANIMALS
    ],
)
def test_a_plugin_that_breaks_a_rule_fails_it(plugin: str, rule: str, seen: str, report: Report) -> None:
    assert report.plugin == plugin
    assert [finding.rule for finding in report.failed] == [rule], str(report)
    assert seen in report[rule].seen


def test_every_rule_has_a_plugin_that_breaks_it() -> None:
    assert {rule for _, rule, _ in ANIMALS} == set(RULES)


@pytest.mark.parametrize("part", [pytest.param(plugin, marks=_marks(plugin)) for plugin in PARTS])
def test_a_plugin_that_breaks_no_rule_passes_those_that_it_is_there_for(part: str, report: Report) -> None:
    assert report.plugin == part
    assert any(one.outcome == "passed" for one in report)
    assert [one.rule for one in report if not isinstance(one.seen, str)] == []
    report.check()


def test_every_rule_has_a_plugin_that_is_there_to_pass_it() -> None:
    assert {rule for part in PARTS.values() for rule in named(part["rules"])} == set(RULES)


@pytest.mark.soak
@pytest.mark.parametrize(
    "plugin",
    [
        "zoo_process:Tame",
        "zoo_device:Tame",
        "zoo_device:Picky",
        "zoo_claims:Tame",
        "zoo_claims:Cut",
        "zoo_cni:Tame",
        "zoo_volume:Tame",
        "zoo_volume:Attached",
        "zoo_volume:Renews",
        "zoo_volume:Inline",
        "zoo_volume:Reads",
        "zoo_extender:Tame",
        "zoo_extender:Whole",
        "zoo_provisioning:Maker",
        pytest.param("zoo_provisioning:Raw", marks=PROGRAMS["zoo_provisioning:Raw"]),
    ],
)
def test_a_plugin_that_breaks_no_rule_passes_all(plugin: str, report: Report) -> None:
    assert report.plugin == plugin
    report.check()


@pytest.mark.usefixtures("_path")
def test_a_resource_that_refuses_every_device_is_told_beside_one_that_grants() -> None:
    report = conformance("zoo_device:Picky", rules=["one-device-is-granted", "several-devices-are-granted-or-refused"])
    assert "example.com/count: does not apply, the resource refuses" in report["one-device-is-granted"].seen
    assert (
        "example.com/null: 2 of 4 together, more are refused" in report["several-devices-are-granted-or-refused"].seen
    )


@pytest.mark.usefixtures("_path")
def test_a_resource_that_refuses_some_of_its_devices_breaks_a_rule() -> None:
    report = conformance("zoo_device:RefusesTheLast", rules=["one-device-is-granted"])
    assert "null-3 is reserved" in report["one-device-is-granted"].seen
    assert not report.passed


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize(
    ("plugin", "outcomes"),
    [
        ("zoo_contract:MisspellsHook", ("failed", "not-applicable")),
        ("zoo_contract:ClaimsPath", ("passed", "failed")),
    ],
    ids=["a mistake in the hooks", "a mistake in the claims"],
)
def test_a_mistake_in_hooks_or_claims_is_told_once(plugin: str, outcomes: tuple[str, str]) -> None:
    report = conformance(plugin, rules=["hooks-are-known", "claims-are-valid"])
    assert tuple(report[rule].outcome for rule in ("hooks-are-known", "claims-are-valid")) == outcomes


@pytest.mark.whole
@pytest.mark.usefixtures("_path")
def test_rules_about_a_whole_life_are_not_judged_by_the_part_before_a_hanging_call() -> None:
    rules = ["nothing-is-printed", "no-thread-outlives-stop", "answers-have-their-types", "errors-are-sentences"]
    report = conformance("zoo_contract:HangsInStart", rules=rules, patience=2.0)
    assert {(one.outcome, one.seen) for one in report} == {("not-applicable", "start hung")}


@pytest.mark.whole
@pytest.mark.usefixtures("_path")
def test_what_was_printed_before_a_hanging_call_is_told() -> None:
    report = conformance("zoo_contract:PrintsAndHangs", rules=["nothing-is-printed"], patience=2.0)
    assert "hello" in report["nothing-is-printed"].seen
    assert not report.passed


@pytest.mark.usefixtures("_path")
def test_a_plugin_that_breaks_a_rule_only_in_a_process_fails_it_and_says_so() -> None:
    report = conformance("zoo_device:CountsInAProcess", rules=["grants-are-repeatable"])
    assert report["grants-are-repeatable"].seen.startswith("in a process: ")
    assert report["grants-are-repeatable"].isolation == ("thread", "process")


@pytest.mark.usefixtures("_path")
def test_a_rule_that_needs_no_daemon_is_judged_once() -> None:
    told: list[str] = []
    conformance(
        "zoo_device:Tame", rules=["ids-are-short", "daemon-runs-it"], progress=lambda one: told.append(one.rule)
    )
    assert told == ["daemon-runs-it", "ids-are-short", "daemon-runs-it"]


@pytest.mark.whole
@pytest.mark.usefixtures("_path")
def test_a_plugin_that_loses_its_process_breaks_one_rule_alone() -> None:
    rules = [rule for rule, one in RULES.items() if one.style == "process"]
    report = conformance("zoo_process:EndsItsProcess", rules=rules)
    assert [finding.rule for finding in report.failed] == ["process-stays-alive"], str(report)


@pytest.mark.usefixtures("_path")
def test_a_plugin_that_runs_as_a_thread_is_not_judged_by_rules_for_a_process_of_its_own() -> None:
    report = conformance("zoo_process:NeverRests", isolation="thread", rules=["idle-plugin-rests"])
    assert report["idle-plugin-rests"].seen == "it is judged in a process alone"


@pytest.mark.whole
@pytest.mark.usefixtures("_path")
def test_a_plugin_that_works_for_a_while_after_its_start_is_not_taken_for_one_that_never_rests() -> None:
    report = conformance("zoo_process:WorksForAWhile", isolation="process", rules=["idle-plugin-rests"])
    report.check()


@pytest.mark.whole
@pytest.mark.usefixtures("_path")
def test_a_plugin_that_fills_a_cache_is_not_taken_for_one_that_grows() -> None:
    rules = ["memory-stays-bounded", "descriptors-stay-bounded"]
    report = conformance("zoo_process:FillsCache", isolation="process", rules=rules)
    report.check()


@pytest.mark.whole
@pytest.mark.usefixtures("_path")
def test_a_process_that_a_broken_plugin_leaves_is_ended_with_the_run() -> None:
    conformance("zoo_process:LeavesChild", rules=["nothing-is-left-after-stop"])
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (entry / "cmdline").read_bytes() == b"sleep\x0060\x00":
                assert MARK.encode() not in (entry / "environ").read_bytes()
