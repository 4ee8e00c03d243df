"""What a call of kubelet's means for a CSI volume: which secrets name it, and what a target is that cannot be made."""

from dataclasses import replace
from pathlib import Path

import pytest

from nodeplug import Pod, Secrets, TryAgain, VolumeId, VolumePublish
from nodeplug.csi import codec, volume

WANTED = VolumePublish(driver="acme/disk", volume_id=VolumeId("v"), target_path="/", access_mode="SINGLE_NODE_WRITER")


def marking(pod: Pod, **secrets: bytes) -> Secrets:
    return volume._marking(replace(WANTED, pod=pod, secrets=Secrets({"user": b"u", **secrets})))


def test_tokens_name_a_volume_by_the_account_that_they_are_of() -> None:
    pod = Pod(namespace="n", name="p", uid="1", service_account="one")
    first = marking(pod, **{codec.TOKENS: b"a token"})
    assert dict(first) == {"user": b"u", codec.TOKENS: b"n/one"}
    assert marking(pod, **{codec.TOKENS: b"the next token"}) == first
    assert marking(replace(pod, service_account="two"), **{codec.TOKENS: b"a token"}) != first


def test_a_volume_without_tokens_is_not_named_by_its_account() -> None:
    assert dict(marking(Pod(namespace="n", name="p", uid="1", service_account="one"))) == {"user": b"u"}


@pytest.mark.parametrize("block", [False, True])
def test_a_target_that_the_filesystem_refuses_can_be_tried_again(tmp_path: Path, block: bool) -> None:
    wanted = replace(WANTED, target_path=str(tmp_path / ("x" * 256)), block=block)
    with pytest.raises(TryAgain, match="cannot be made: File name too long"):
        volume._make_target(wanted)
