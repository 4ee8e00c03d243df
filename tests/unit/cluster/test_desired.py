"""What plugins may write into the cluster's objects, and what wins where two write the same."""

import pytest

from nodeplug import ClusterReport, NodeCondition, NodeConfigMap, PodReport, PodWarning
from nodeplug.cluster.conditions import LASTING, UNCHANGED, NotReadyConditions
from nodeplug.cluster.desired import ANNOTATIONS, Desired, joined
from nodeplug.cluster.requests import Budget


def join(*reports: ClusterReport) -> Desired:
    return joined({f"s{number}": one for number, one in enumerate(reports)}, {}, (), "here")


def test_reports_of_all_plugins_are_joined_with_the_daemons_own() -> None:
    own = NodeCondition(type="nodeplug.io/x", reason="NotReady", message="no")
    first = ClusterReport(labels={"a.com/x": "1"}, annotations={"a.com/n": "{}"})
    second = ClusterReport(conditions=(NodeCondition(type="b.com/C", reason="R", message="m"),))
    made = joined({"one": first, "two": second}, {"nodeplug.io/version": "1"}, (own,), "here")
    assert made.labels == {"nodeplug.io/version": "1", "a.com/x": "1"}
    assert made.annotations == {"a.com/n": "{}"}
    assert list(made.conditions) == ["nodeplug.io/x", "b.com/C"]
    assert made.faults == ()


@pytest.mark.parametrize(
    ("report", "told"),
    [
        (ClusterReport(labels={"bare": "1"}), "needs a domain"),
        (ClusterReport(labels={"node-role.kubernetes.io/control-plane": ""}), "belongs to Kubernetes"),
        (ClusterReport(labels={"kubernetes.io/hostname": "other"}), "belongs to Kubernetes"),
        (ClusterReport(labels={"a.com/x": "no spaces"}), "cannot be 'no spaces'"),
        (ClusterReport(labels={"a.com/x": "y" * 64}), "at most 63"),
        (ClusterReport(labels={"A.com/x": "1"}), "no domain in lower case"),
        (ClusterReport(annotations={"a.com/" + "x" * 64: "1"}), "at most 63"),
        (ClusterReport(annotations={"a.com/x": "y" * (ANNOTATIONS + 1)}), "more than 65536 bytes"),
        (ClusterReport(conditions=(NodeCondition(type="Ready", reason="R", message="m"),)), "needs a domain"),
        (ClusterReport(conditions=(NodeCondition(type="a.com/C", reason="two words", message="m"),)), "CamelCase"),
        (ClusterReport(config_maps=(NodeConfigMap(namespace="n", name="x-there", data={}),)), "end with -here"),
        (ClusterReport(config_maps=(NodeConfigMap(namespace="n", name="x-here", data={"a b": ""}),)), "a key of a"),
    ],
)
def test_what_no_plugin_may_write_is_left_out_with_a_sentence(report: ClusterReport, told: str) -> None:
    made = join(report, ClusterReport(labels={"b.com/fine": "1"}))
    assert made.labels == {"b.com/fine": "1"}
    assert (made.annotations, made.conditions, made.config_maps) == ({}, {}, {})
    (fault,) = made.faults
    assert fault.startswith("plugin s0: ")
    assert told in fault


def test_of_two_sections_that_report_one_label_the_first_wins() -> None:
    made = join(ClusterReport(labels={"a.com/x": "1"}), ClusterReport(labels={"a.com/x": "2"}))
    assert made.labels == {"a.com/x": "1"}
    assert made.faults == ("plugin s1: label 'a.com/x' is reported by another section, too",)


def test_annotations_of_pods_need_no_domain_for_other_programs_named_them() -> None:
    pod = PodReport(
        namespace="n",
        name="p",
        annotations={"ALIYUN_COM_GPU_MEM_IDX": "0", "kubernetes.io/config.source": "x"},
        warnings=(PodWarning("Fine", "a sentence"), PodWarning("not fine", "x")),
    )
    made = join(ClusterReport(pods=(pod,)))
    assert made.pods[0].annotations == {"ALIYUN_COM_GPU_MEM_IDX": "0"}
    assert [one.reason for one in made.pods[0].warnings] == ["Fine"]
    assert len(made.faults) == 2


def test_what_is_not_ready_for_a_moment_is_no_condition() -> None:
    conditions = NotReadyConditions()
    assert conditions.now({"gpu": "it is exchanged"}, 0) == []
    assert conditions.now({}, LASTING + 1) == []
    assert conditions.now({"gpu": "no driver"}, LASTING + 2) == []
    (one,) = conditions.now({"gpu": "no driver"}, 2 * LASTING + 2)
    assert (one.type, one.message) == ("nodeplug.io/gpu-not-ready", "gpu: no driver")


def test_a_sentence_that_counts_changes_the_condition_once_a_minute() -> None:
    conditions = NotReadyConditions()
    said = []
    for second in range(int(LASTING), int(LASTING + UNCHANGED) + 10):
        made = conditions.now({"gpu": f"try {second}"}, float(second))
        said += [one.message for one in made]
    assert len(set(said)) == 1
    (late,) = conditions.now({"gpu": "try again"}, 3 * UNCHANGED)
    assert late.message == "gpu: try again"


def test_a_budget_lets_a_burst_through_and_then_so_many_a_second() -> None:
    now = 0.0
    budget = Budget(3, 10.0, clock=lambda: now)
    assert budget.pause() == 0
    assert [budget.wait() for _ in range(5)] == [0, 0, 0, 10, 20]
    assert budget.pause() == 30
    now = 1000.0
    assert [budget.wait() for _ in range(4)] == [0, 0, 0, 10]
