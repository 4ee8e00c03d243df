"""How much the daemon reads of what comes from outside."""

import json

import pytest

from nodeplug.contract.inputs import DEPTH, INPUTS, Input, values_in

SMALL = Input(what="a thing", sender="somebody", size=1000, values=10)
OF_JSON = [one for one in INPUTS if one.values]


def lists(count: int) -> bytes:
    """Return JSON with so many values, each as small as it can be."""
    return b"[" + b",".join([b"[]"] * (count - 1)) + b"]"


@pytest.mark.parametrize("text", [b"7", b'"a"', b"[]", b"{}", b'[1, {"a": [true]}]', lists(5)])
def test_what_is_within_its_limits_is_read(text: bytes) -> None:
    assert SMALL.loads(text) == json.loads(text) == SMALL.loads(text.decode())


@pytest.mark.parametrize("text", [b"[NaN]", b"Infinity", b"", b"{", b"\xff"])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the parser's words
        SMALL.loads(text)


@pytest.mark.parametrize("text", [lists(12), b"{" + b",".join(b'"%d":{}' % one for one in range(11)) + b"}"])
def test_too_many_values_are_refused_before_they_are_read(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"it has about \d+ values, and the limit is 10"):
        SMALL.loads(text)


def test_a_document_that_is_nested_too_deeply_is_refused() -> None:
    deep = Input(what="", sender="", size=1 << 20, values=1 << 20)
    with pytest.raises(ValueError, match="it is nested too deeply"):
        deep.loads(b"[" * (2 * DEPTH) + b"]" * (2 * DEPTH))


@pytest.mark.parametrize("one", INPUTS, ids=lambda one: one.what[:30])
def test_a_byte_too_many_is_refused(one: Input) -> None:
    text = b'"' + b"x" * (one.size - 2) + b'"'
    one.check(text)
    with pytest.raises(ValueError, match=f"the limit is {one.size}"):
        one.check(text + b" ")


@pytest.mark.parametrize("one", OF_JSON, ids=lambda one: one.what[:30])
def test_a_document_of_the_smallest_values_is_refused_before_it_takes_half_of_the_daemon_s_memory(one: Input) -> None:
    assert one.most_values(one.size) * 230 < 512 << 20  # bytes of an object with one key, in an object
    with pytest.raises(ValueError, match="values, and"):
        one.check(b"," * one.size)


@pytest.mark.parametrize("text", ["", "a", "[1,2,3]", '{"a":{"b":[]}}', '["a,b"]'])
def test_the_count_of_values_is_never_too_low(text: str) -> None:
    assert values_in(text) == values_in(text.encode()) >= text.count(":") + 1


def test_a_long_document_may_have_a_value_for_each_sixteen_bytes() -> None:
    dense = Input(what="", sender="", size=1 << 20, values=10, dense=True)
    assert dense.most_values(100) == 10
    assert dense.most_values(1600) == 100
