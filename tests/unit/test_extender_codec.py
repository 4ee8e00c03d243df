"""The codec of extenders is total: any body becomes a request or an error, and no wrong answer leaves it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeplug.contract.errors import InvalidRequest, NotFound, PluginError, Undecodable
from nodeplug.contract.values import ExtenderPreempt, ExtenderVerdict, ExtenderVictims
from nodeplug.extender.codec import VERBS, Asked, encode_error, verb

POD = {"metadata": {"name": "a", "uid": "u"}}


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def asked(name: str = "filter") -> Asked:
    return VERBS[name].decode("example", body(Pod=POD, NodeNames=["a", "b"]))


def preempting() -> Asked:
    victims = {"a": {"Pods": [{"UID": "u1"}, {"UID": "u2"}], "NumPDBViolations": 0}}
    return VERBS["preempt"].decode("example", body(Pod=POD, NodeNameToMetaVictims=victims))


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    [
        *("Pod", "Nodes", "NodeNames", "nodenames", "PODNAME", "PodNamespace", "PodUID", "Node"),
        *("NodeNameToVictims", "NodeNameToMetaVictims", "items", "Pods", "metadata"),
    ]
)
bodies = (
    st.binary()
    | json_values.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(names, json_values | st.dictionaries(names, json_values)).map(
        lambda value: json.dumps(value).encode()
    )
)


@pytest.mark.whole
@pytest.mark.parametrize("name", VERBS)
@given(found=bodies)
def test_any_body_is_a_request_or_an_error_of_the_tree(name: str, found: bytes) -> None:
    try:
        VERBS[name].decode("example", found)
    except InvalidRequest as error:
        refusal = error
    else:
        return
    status, told = encode_error(VERBS[name], refusal)
    assert (status == 200) == (name in {"filter", "bind"})
    assert refusal.message.split(":")[0] in told.decode()


@pytest.mark.parametrize("found", [b"[" * 100_000, b'{"Pod":' * 100_000, b'{"Pod":{"a":NaN}}', b"\xff", b"{} {}", b""])
def test_what_no_scheduler_sends_is_refused_in_a_sentence(found: bytes) -> None:
    with pytest.raises(Undecodable, match="the body is"):
        VERBS["filter"].decode("example", found)


def test_names_of_fields_are_read_in_any_case() -> None:
    other = VERBS["filter"].decode("example", json.dumps({"pod": POD, "NODENAMES": ["a", "b"], "nodes": None}).encode())
    assert other == asked()


def test_a_list_of_nodes_is_read_in_any_case_and_with_white_space() -> None:
    items = b'[ {"metadata":{"name":"a"}} , {"metadata":{"name":"b"}} ]'
    text = b'{ "POD" : {"metadata":{}} ,\n "nodes" : { "Items" : ' + items + b" } }"
    found = VERBS["filter"].decode("example", text)
    assert found.written == {"a": '{"metadata":{"name":"a"}}', "b": '{"metadata":{"name":"b"}}'}


def test_no_node_in_a_list_is_a_request_without_nodes() -> None:
    empty = VERBS["filter"].decode("example", body(Pod=POD, Nodes={"metadata": {}, "items": None}, NodeNames=None))
    assert empty.written == {}


@pytest.mark.parametrize("nodes", [[], [[]], [{"metadata": {"name": "a"}}]])
def test_nodes_that_are_no_list_of_the_api_server_are_refused(nodes: list[object]) -> None:
    with pytest.raises(InvalidRequest, match="nodes is an array"):
        VERBS["filter"].decode("example", body(Pod=POD, Nodes=nodes, NodeNames=None))


def test_a_node_of_whom_nothing_is_said_has_failed_without_a_reason() -> None:
    answer = json.loads(VERBS["filter"].encode(asked(), ExtenderVerdict(nodes=("a",))))
    assert answer["FailedNodes"] == {"b": "the extender example gave no reason"}


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (ExtenderVerdict(nodes=("a", "z")), "nodes of .*the scheduler did not ask about 'z'"),
        (ExtenderVerdict(nodes=(), failed={"z": "full"}), "failed of .*the scheduler did not ask about 'z'"),
        (ExtenderVerdict(nodes=(), unresolvable={"z": "full"}), "unresolvable of .*did not ask about 'z'"),
        (ExtenderVerdict(nodes=("a",), failed={"a": "full"}), "'a' as nodes that can run the pod, and as some that"),
        (ExtenderVerdict(nodes=(1,)), "did not ask about 1"),  # type: ignore[arg-type] # what authors do
        (ExtenderVerdict(nodes=(), failed={"a": 1}), "returned a int as the reason"),  # type: ignore[dict-item]
        (ExtenderVerdict(nodes=(), failed=["a"]), "returned a list as failed"),  # type: ignore[arg-type]
    ],
)
def test_a_verdict_that_the_scheduler_would_misread_is_refused(verdict: ExtenderVerdict, text: str) -> None:
    with pytest.raises(PluginError, match=text):
        VERBS["filter"].encode(asked(), verdict)


@pytest.mark.parametrize(
    ("scores", "text"),
    [
        ({"z": 1}, "did not ask about 'z'"),
        ({"a": 11}, "returned 11 for 'a'; return whole numbers from 0 to 10"),
        ({"a": -1}, "returned -1"),
        ({"a": 0.5}, "returned 0.5"),
    ],
)
def test_a_score_that_the_scheduler_would_not_limit_is_refused(scores: Any, text: str) -> None:
    with pytest.raises(PluginError, match=text):
        VERBS["prioritize"].encode(asked("prioritize"), scores)


@pytest.mark.parametrize(
    ("victims", "text"),
    [
        ({"z": ExtenderVictims(pods=())}, "did not ask about 'z'"),
        ({"a": ("u1",)}, "returned a tuple for 'a'"),
        ({"a": ExtenderVictims(pods=("",))}, "a victim without UID"),
        ({"a": ExtenderVictims(pods=(), pdb_violations=-1)}, "less than no violation"),
    ],
)
def test_victims_that_the_scheduler_would_refuse_are_refused(victims: Any, text: str) -> None:
    with pytest.raises(PluginError, match=text):
        VERBS["preempt"].encode(preempting(), victims)


def test_fewer_victims_are_an_answer() -> None:
    request = preempting().request
    assert isinstance(request, ExtenderPreempt)
    fewer = {"a": ExtenderVictims(pods=request.victims["a"].pods[:1])}
    answer = json.loads(VERBS["preempt"].encode(preempting(), fewer))
    assert answer["NodeNameToMetaVictims"]["a"]["Pods"] == [{"UID": "u1"}]


def test_an_unknown_verb_is_told_with_the_known_ones() -> None:
    with pytest.raises(NotFound, match="no verb 'predicates'; there are filter, prioritize, preempt, bind"):
        verb("predicates")


def test_a_long_reason_is_cut_off() -> None:
    answer = json.loads(VERBS["filter"].encode(asked(), ExtenderVerdict(nodes=(), failed={"a": "x" * 5000})))
    assert len(answer["FailedNodes"]["a"]) < 1100


def test_half_a_pair_of_surrogates_is_escaped_as_it_came() -> None:
    found = VERBS["filter"].decode("example", b'{"Pod":{},"NodeNames":["\\ud800"]}')
    assert b'"NodeNames":["\\ud800"]' in VERBS["filter"].encode(found, ExtenderVerdict(nodes=("\ud800",)))
