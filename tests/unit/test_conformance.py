"""Reports, the registry of rules, and what is examined: the parts of the conformance kit that need no plugin."""

import importlib.util
import json
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from nodeplug.contract.errors import PluginError
from nodeplug.testing.conformance.examination import Examination
from nodeplug.testing.conformance.report import Finding, Outcome, Report, few, merged
from nodeplug.testing.conformance.rules import RULES, choose, require, rule
from nodeplug.testing.conformance.subject import Subject, describe
from nodeplug.testing.conformance.verdict import NotApplicable


class Plain:
    """A class that a new process can import from this file."""

    example: ClassVar[dict[str, Any]] = {"volume_options": {"size": "1m", "place": "{scratch}/x"}, "keeps_data": True}


class Odd:
    example: ClassVar[dict[str, Any]] = {"volumes": {}}


def finding(rule: str, outcome: Outcome, style: str = "cni") -> Finding:
    advice = "do better" if outcome == "failed" else ""
    return Finding(rule, style, outcome, "it works.", "SPEC", f"saw {rule}", advice)  # type: ignore[arg-type]  # a style


REPORT = Report("wire", (finding("one", "passed"), finding("two", "failed"), finding("three", "not-applicable")))


def test_a_report_has_passed_when_no_rule_failed() -> None:
    assert not REPORT.passed
    assert Report("wire", (finding("one", "passed"), finding("two", "not-applicable"))).passed


def test_checking_a_report_raises_with_what_was_expected_and_seen() -> None:
    with pytest.raises(AssertionError, match="two") as raised:
        REPORT.check()
    for text in ("it works.", "SPEC", "saw two", "do better", "1 failed"):
        assert text in str(raised.value)
    assert "saw one" not in str(raised.value)


def test_a_report_without_failures_checks_silently() -> None:
    Report("wire", ()).check()


def test_a_report_finds_a_rule_by_name() -> None:
    assert REPORT["two"].outcome == "failed"
    with pytest.raises(KeyError):
        REPORT["four"]


def test_a_report_shows_each_style_once_and_what_did_not_apply_at_its_end() -> None:
    text = str(REPORT)
    assert text.startswith("cni:\n")
    assert text.index("saw one") < text.index("FAILED two") < text.index("three: saw three")
    assert text.endswith("wire: 1 rules passed, 1 failed, 1 did not apply")


def test_rules_that_did_not_apply_for_one_reason_share_a_line() -> None:
    same = Finding("a", "device", "not-applicable", "x.", "y", "no claim")
    other = Finding("b", "device", "not-applicable", "x.", "y", "no claim")
    assert str(Report("p", (same, other))).splitlines()[1] == "  -      every rule: no claim"


def test_a_report_as_json_has_every_field_of_every_finding() -> None:
    document = json.loads(REPORT.as_json())
    assert document["plugin"] == "wire"
    assert document["passed"] is False
    assert document["findings"][1] == {
        "rule": "two",
        "style": "cni",
        "outcome": "failed",
        "expected": "it works.",
        "source": "SPEC",
        "seen": "saw two",
        "advice": "do better",
        "isolation": [],
    }


AS_THREAD = Finding("a", "cni", "passed", "it works.", "SPEC", "saw 1", isolation=("thread",))
IN_PROCESS = replace(AS_THREAD, seen="saw 2", isolation=("process",))
NOWHERE = Finding("a", "cni", "not-applicable", "it works.", "SPEC", "it has none")


def failed(one: Finding, seen: str) -> Finding:
    return replace(one, outcome="failed", seen=seen, advice="do better")


def test_a_rule_that_is_kept_in_both_ways_is_one_finding_that_names_them() -> None:
    assert str(merged([AS_THREAD, IN_PROCESS])) == "ok     a (thread, process): saw 1"


def test_a_rule_that_is_broken_in_one_way_is_broken_and_says_in_which() -> None:
    found = merged([AS_THREAD, failed(IN_PROCESS, "it broke")])
    assert (found.outcome, found.seen, found.advice) == ("failed", "in a process: it broke", "do better")
    assert found.isolation == ("thread", "process")


def test_a_rule_that_is_broken_alike_in_both_ways_tells_it_once() -> None:
    assert merged([failed(AS_THREAD, "it broke"), failed(IN_PROCESS, "it broke")]).seen == "it broke"


def test_a_rule_that_is_broken_in_two_ways_tells_both() -> None:
    found = merged([failed(AS_THREAD, "it broke"), failed(IN_PROCESS, "it left")])
    assert found.seen == "as a thread: it broke\nin a process: it left"


def test_a_rule_that_applies_in_one_way_is_judged_in_that() -> None:
    assert merged([AS_THREAD, NOWHERE]) == AS_THREAD
    assert merged([NOWHERE, NOWHERE]) == NOWHERE


def test_a_rule_that_was_broken_without_the_daemon_has_no_way() -> None:
    alone = replace(failed(AS_THREAD, "it broke"), isolation=())
    assert merged([alone]) == alone


@pytest.mark.parametrize(
    ("names", "shown"),
    [([], ""), (["b", "a", "c"], "b, a, c"), ({"d", "c", "b", "a"}, "a, b, c and 1 more")],
    ids=["none", "three in their order", "a sorted set"],
)
def test_three_of_many_names_are_shown_with_the_count_of_the_rest(names: Collection[str], shown: str) -> None:
    assert few(names) == shown


def test_every_rule_is_a_sentence_with_a_source_and_advice() -> None:
    for one in RULES.values():
        assert one.expected.endswith("."), one.name
        assert one.source, one.name
        assert one.advice.endswith("."), one.name


def test_a_rule_without_a_sentence_is_refused() -> None:
    def mute(exam: Examination) -> str:
        return ""

    with pytest.raises(ValueError, match="mute"):
        rule("cni", "SPEC", "Speak.")(mute)


def test_rules_are_chosen_by_name_in_their_own_order() -> None:
    assert [one.name for one in choose(("add-succeeds", "plugin-is-constructed"))] == [
        "plugin-is-constructed",
        "add-succeeds",
    ]


def test_an_unknown_rule_is_named() -> None:
    with pytest.raises(PluginError, match="no rule add-fails"):
        choose(("add-fails",))


def test_a_rule_applies_to_plugins_with_its_claim_and_its_hooks_alone() -> None:
    one = RULES["preferences-are-available"]
    require(one, {"device": ("example.com/a",)}, frozenset({"device_prefer"}))
    with pytest.raises(NotApplicable, match="no device claim"):
        require(one, {"cni": ("a",)}, frozenset({"device_prefer"}))
    with pytest.raises(NotApplicable, match="no device_prefer"):
        require(one, {"device": ("example.com/a",)}, frozenset())


def test_the_scratch_folder_is_filled_in_at_every_depth() -> None:
    told = Subject("a:B", config={"a": ["{scratch}/x", {"b": Path("/{scratch}")}]}, cni={"c": "{scratch}"})
    filled = told.within(Path("/tmp/s"))
    assert filled.config == {"a": ["/tmp/s/x", {"b": "/{scratch}"}]}
    assert filled.cni == {"c": "/tmp/s"}


def test_a_class_of_a_test_file_can_be_imported_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "test_mine.py"
    file.write_text("class Mine:\n    pass\n")
    spec = importlib.util.spec_from_file_location("a_name_that_pytest_made_up.test_mine", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    spec.loader.exec_module(module)
    subject = describe(module.Mine, {})
    assert subject.uses == "test_mine:Mine"
    assert str(tmp_path) in subject.python_path


def test_a_class_of_an_installed_package_keeps_its_module() -> None:
    assert describe(Report, {}).uses == "nodeplug.testing.conformance.report:Report"


def test_the_example_of_a_plugin_is_used_unless_something_else_is_given() -> None:
    assert describe(Plain, {"keeps_data": None}).keeps_data is True
    assert describe(Plain, {"volume_options": {"size": "2m"}}).options == {"size": "2m"}


def test_an_example_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(PluginError, match="'volumes'; known: config"):
        describe(Odd, {})


def test_a_class_inside_a_function_is_refused() -> None:
    class Inner:
        pass

    with pytest.raises(PluginError, match="top level of a module"):
        describe(Inner, {})
