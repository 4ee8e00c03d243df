"""Bodies as kube-scheduler 1.36 wrote them (recorded beside this file), to the exact bytes of the answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from nodeplug.contract.errors import Exhausted, PluginError, TryAgain
from nodeplug.contract.values import (
    ExtenderBind,
    ExtenderFilter,
    ExtenderPreempt,
    ExtenderPrioritize,
    ExtenderVerdict,
    ExtenderVictims,
)
from nodeplug.extender.codec import Asked, encode_error, verb

RECORDED = Path(__file__).parent / "extender"
ALPHA, BETA = "1f4d042b-dc02-4a9c-98c8-1c016935e1f9", "a0589779-1753-44c8-a3d9-bee1a78cf7e4"


def body(name: str) -> bytes:
    return (RECORDED / f"{name}.json").read_bytes()


def decode(name: str) -> Asked:
    return verb(name.partition("-")[0]).decode("example", body(name))


def document(name: str) -> Any:
    return json.loads(body(name))


@pytest.mark.parametrize(("name", "kind"), [("filter", ExtenderFilter), ("prioritize", ExtenderPrioritize)])
def test_names_are_nodes_without_their_object(name: str, kind: Any) -> None:
    found = document(f"{name}-names")
    request = kind(claim="example", pod=found["Pod"], nodes={"alpha": None, "beta": None})
    assert decode(f"{name}-names") == Asked(request)


@pytest.mark.parametrize(("name", "kind"), [("filter", ExtenderFilter), ("prioritize", ExtenderPrioritize)])
def test_whole_nodes_keep_their_order_and_how_they_were_written(name: str, kind: Any) -> None:
    found = document(f"{name}-whole")
    asked = decode(f"{name}-whole")
    beta, alpha = found["Nodes"]["items"]
    assert asked.request == kind(claim="example", pod=found["Pod"], nodes={"beta": beta, "alpha": alpha})
    assert asked.written is not None
    assert list(asked.written) == ["beta", "alpha"]
    assert all(one.encode() in body(f"{name}-whole") for one in asked.written.values())


def test_victims_are_uids_where_only_they_are_sent() -> None:
    victims = {"alpha": ExtenderVictims(pods=(ALPHA,)), "beta": ExtenderVictims(pods=(BETA,))}
    request = ExtenderPreempt(claim="example", pod=document("preempt-names")["Pod"], victims=victims)
    assert decode("preempt-names").request == request


def test_victims_have_their_pods_where_they_are_sent() -> None:
    found = document("preempt-whole")["NodeNameToVictims"]
    request = decode("preempt-whole").request
    assert isinstance(request, ExtenderPreempt)
    for node, victims in request.victims.items():
        (pod,) = found[node]["Pods"]
        uid = pod["metadata"]["uid"]
        assert victims == ExtenderVictims(pods=(uid,), objects={uid: pod})


def test_a_binding_is_read() -> None:
    uid = "c66c1046-b66a-448d-af66-df8f135a1036"
    request = ExtenderBind(claim="example", namespace="default", pod="small-names", uid=uid, node="alpha")
    assert decode("bind") == Asked(request)


def encoded(name: str, answer: Any) -> bytes:
    return verb(name.partition("-")[0]).encode(decode(name), answer)


def test_filter_answers_names_and_reasons() -> None:
    verdict = ExtenderVerdict(nodes=("beta",), failed={"alpha": "no slot is free"})
    assert encoded("filter-names", verdict) == (
        b'{"Nodes":null,"NodeNames":["beta"],"FailedNodes":{"alpha":"no slot is free"},'
        b'"FailedAndUnresolvableNodes":{},"Error":""}'
    )


def test_no_node_at_all_is_an_empty_list_and_never_null() -> None:
    verdict = ExtenderVerdict(nodes=(), failed={"alpha": "full"}, unresolvable={"beta": "too small"})
    assert encoded("filter-names", verdict) == (
        b'{"Nodes":null,"NodeNames":[],"FailedNodes":{"alpha":"full"},'
        b'"FailedAndUnresolvableNodes":{"beta":"too small"},"Error":""}'
    )


def test_whole_nodes_are_given_back_byte_for_byte() -> None:
    asked = decode("filter-whole")
    assert asked.written is not None
    answer = encoded("filter-whole", ExtenderVerdict(nodes=("alpha",), failed={"beta": "full"}))
    whole = asked.written["alpha"].encode()
    assert whole in body("filter-whole")
    assert answer == (
        b'{"Nodes":{"metadata":{},"items":[' + whole + b']},"NodeNames":["alpha"],"FailedNodes":{"beta":"full"},'
        b'"FailedAndUnresolvableNodes":{},"Error":""}'
    )


@pytest.mark.parametrize("mode", ["names", "whole"])
def test_every_node_gets_a_score(mode: str) -> None:
    answer = json.loads(encoded(f"prioritize-{mode}", {"beta": 10}))
    assert sorted((one["Host"], one["Score"]) for one in answer) == [("alpha", 0), ("beta", 10)]


def test_scores_are_a_bare_list() -> None:
    assert encoded("prioritize-names", {"alpha": 3}) == b'[{"Host":"alpha","Score":3},{"Host":"beta","Score":0}]'


def test_victims_are_answered_as_uids() -> None:
    kept = {"alpha": ExtenderVictims(pods=(ALPHA,), pdb_violations=1)}
    assert encoded("preempt-names", kept) == (
        b'{"NodeNameToMetaVictims":{"alpha":{"Pods":[{"UID":"' + ALPHA.encode() + b'"}],"NumPDBViolations":1}}}'
    )


def test_a_pod_that_is_bound_is_no_error() -> None:
    assert encoded("bind", None) == b'{"Error":""}'


@pytest.mark.parametrize(
    ("name", "error", "status", "told"),
    [
        (
            "filter",
            TryAgain("no answer"),
            200,
            b'{"Nodes":null,"NodeNames":[],"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":"no answer"}',
        ),
        ("bind", PluginError("no"), 200, b'{"Error":"no"}'),
        ("prioritize", TryAgain("no"), 503, b"no\n"),
        ("preempt", Exhausted("no"), 429, b"no\n"),
    ],
)
def test_an_error_is_told_where_the_scheduler_reads_it(name: str, error: PluginError, status: int, told: bytes) -> None:
    assert encode_error(verb(name), error) == (status, told)
