"""CNI_ARGS: lenient for everybody, strict for a plugin that reads them."""

import pytest

from nodeplug import InvalidEnvironment
from nodeplug.contract import cni_args


def test_only_pairs_that_are_well_formed_are_handed_over() -> None:
    assert cni_args.pairs("none;A=1;B=;=2;C=1=2;") == {"A": "1", "B": "", "": "2"}
    assert cni_args.pairs("") == {}


def test_a_plugin_reads_what_it_knows() -> None:
    assert cni_args.read("IP=1;IgnoreUnknown=TRUE;K8S_POD_NAME=web", ("IP", "MAC")) == {"IP": "1"}
    assert cni_args.read("", ("IP",)) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A", 'ARGS: invalid pair "A"'),
        ("IgnoreUnknown=1;", 'ARGS: invalid pair ""'),
        ("IP=1=2", 'ARGS: invalid pair "IP=1=2"'),
        ("A=1;B=2", 'ARGS: unknown args ["A=1" "B=2"]'),
        ("ip=1", 'ARGS: unknown args ["ip=1"]'),
        ("IgnoreUnknown=0;A=1", 'ARGS: unknown args ["A=1"]'),
        (
            "IgnoreUnknown=Yes",
            'ARGS: error parsing value of pair "IgnoreUnknown=Yes": boolean unmarshal error: invalid input yes',
        ),
    ],
)
def test_what_a_plugin_does_not_know_is_refused_as_in_go(text: str, words: str) -> None:
    with pytest.raises(InvalidEnvironment) as refusal:
        cni_args.read(text, ("IP",))
    assert refusal.value.message == words
