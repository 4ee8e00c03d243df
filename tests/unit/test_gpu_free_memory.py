"""The annotation that says what of each card is free: its text, its limits, and what a reader refuses."""

import json
from dataclasses import replace
from typing import Any

import pytest

from nodeplug.cluster.names import fault_of_key
from nodeplug_gpu.free_memory import FreeCard, FreeMemory, PodName, Unreadable, annotation_of, decode, encode, skim

FREE = FreeMemory(
    resource="aliyun.com/gpu-mem",
    seq=1790000000000,
    unit=1 << 30,
    policy="binpack",
    cards=(FreeCard("8a5e0c11", "GPU-1", 0, 79, 33), FreeCard("01ab23cd", "GPU-2", 1, 79, 79, healthy=False)),
    pods=(PodName("?", "6f1c", ""), PodName("default", "web-0"), PodName("ml", "train", "c0ffee")),
)
TEXT = (
    '{"v":1,"seq":1790000000000,"resource":"aliyun.com/gpu-mem","unit":1073741824,"policy":"binpack","cards":['
    '{"key":"8a5e0c11","uuid":"GPU-1","minor":0,"units":79,"free":33,"healthy":true},'
    '{"key":"01ab23cd","uuid":"GPU-2","minor":1,"units":79,"free":79,"healthy":false}],'
    '"pods":["?/6f1c","default/web-0","ml/train/c0ffee"]}'
)


def test_the_form_is_the_documented_one() -> None:
    assert encode(FREE) == TEXT
    assert decode(TEXT) == FREE


def test_what_each_pod_holds_is_told_by_card_and_may_be_left_out() -> None:
    told = replace(FREE, held=({"8a5e0c11": 6}, {"8a5e0c11": 30, "01ab23cd": 0}, {"8a5e0c11": 10}))
    assert encode(told) == f'{TEXT[:-1]},"held":[{{"8a5e0c11":6}},{{"8a5e0c11":30,"01ab23cd":0}},{{"8a5e0c11":10}}]}}'
    assert decode(encode(told)) == told


def test_keys_of_later_versions_are_passed_over() -> None:
    assert decode(json.dumps({**json.loads(TEXT), "more": 1})) == FREE


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"v": 2}, "version 2"),
        ({"seq": "1"}, "'seq' is '1'"),
        ({"unit": 0}, "at least 1"),
        ({"policy": "random"}, "policy is 'random'"),
        ({"cards": {}}, "'cards' is {}"),
        ({"cards": [1]}, "one of its cards is 1"),
        (
            {"cards": [{"key": "a", "uuid": "b", "minor": 0, "units": 1, "free": 2, "healthy": True}]},
            "2 of them are free",
        ),
        (
            {"cards": [{"key": "a", "uuid": "b", "minor": True, "units": 1, "free": 1, "healthy": True}]},
            "'minor' is True",
        ),
        ({"cards": 2 * [{"key": "a", "uuid": "b", "minor": 0, "units": 1, "free": 1, "healthy": True}]}, "one key"),
        ({"pods": ["web"]}, "is no pod"),
        ({"pods": ["a/b/c/d"]}, "is no pod"),
        ({"held": [{}]}, "3 pods, and says of 1"),
        ({"held": [1, {}, {}]}, "one of its pods holds is 1"),
        ({"held": [{"8a5e0c11": -1}, {}, {}]}, "'8a5e0c11' is -1"),
    ],
)
def test_another_form_is_refused_with_a_sentence(change: dict[str, Any], told: str) -> None:
    with pytest.raises(Unreadable, match=told):
        decode(json.dumps({**json.loads(TEXT), **change}))


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '"x"'])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        decode(text)


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        ("aliyun.com/gpu-mem", "nodeplug.io/gpu-mem"),
        ("acme.com/gpu-mem", "nodeplug.io/gpu-mem.acme.com"),
        ("acme.com/a100-mem", "nodeplug.io/a100-mem.acme.com"),
    ],
)
def test_each_resource_has_an_annotation_of_its_own(resource: str, name: str) -> None:
    assert annotation_of(resource) == name


def test_a_long_resource_has_a_valid_annotation_that_no_other_has() -> None:
    names = {annotation_of(f"{'x' * 100}{number}.example.com/{'y' * 63}") for number in range(2)}
    assert len(names) == 2
    assert [fault_of_key(name) for name in names] == ["", ""]


def test_a_node_of_eight_cards_and_250_pods_fits() -> None:
    cards = tuple(FreeCard(f"{n:08x}", f"GPU-{'0' * 36}", n, 79, 0) for n in range(8))
    pods = tuple(PodName("namespace-of-a-team", f"a-deployment-{'x' * 20}-{n}") for n in range(250))
    held = tuple({cards[number % 8].key: 10} for number in range(250))
    assert len(encode(replace(FREE, cards=cards, pods=pods, held=held))) < 24_000


def test_what_is_skimmed_is_what_is_read_but_for_what_pods_hold() -> None:
    text = encode(FREE)
    figures, names = skim(text)
    assert figures == replace(decode(text), pods=(), held=())
    assert names == frozenset(map(str, FREE.pods))
