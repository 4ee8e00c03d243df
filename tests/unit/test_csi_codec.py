"""CSI on the wire: names, kubelet's own keys, and requests that are wrong."""

import json
from typing import Any

import pytest

from nodeplug import InvalidRequest, NotFound, Secrets, VolumeClaim, VolumeStats
from nodeplug.csi import codec
from nodeplug.pb import csi_v1_pb2 as pb
from nodeplug.volumes.masking import redact

MODES = pb.VolumeCapability.AccessMode
CLAIM = VolumeClaim("acme/disk")


def request(**changes: Any) -> pb.NodePublishVolumeRequest:
    capability = pb.VolumeCapability(
        mount=pb.VolumeCapability.MountVolume(fs_type="ext4", mount_flags=["noatime"], volume_mount_group="1000"),
        access_mode=MODES(mode=MODES.SINGLE_NODE_MULTI_WRITER),
    )
    parts: dict[str, Any] = {"volume_id": "v", "target_path": "/pods/a//mount/", "volume_capability": capability}
    return pb.NodePublishVolumeRequest(**(parts | changes))


@pytest.mark.parametrize(
    ("claim", "name"),
    [
        (VolumeClaim("nodeplug/loopfile"), "loopfile.nodeplug"),
        (VolumeClaim("example.com/scratch"), "scratch.example.com"),
        (VolumeClaim("scratch", csi_name="scratch.example.com"), "scratch.example.com"),
    ],
)
def test_a_driver_is_named_after_its_claim(claim: VolumeClaim, name: str) -> None:
    assert codec.driver_name(claim) == name


@pytest.mark.parametrize(
    "claim",
    [
        VolumeClaim("scratch"),
        VolumeClaim("Example.com/scratch"),
        VolumeClaim("example.com/my_disk"),
        VolumeClaim("example.com/-x"),
        VolumeClaim("example.com/" + "x" * 60),
        VolumeClaim("acme/disk", csi_name="disk.acme\n"),
    ],
)
def test_a_name_that_no_csidriver_object_can_have_is_refused_with_what_to_do(claim: VolumeClaim) -> None:
    with pytest.raises(InvalidRequest, match="set csi_name in the plugin's VolumeClaim"):
        codec.driver_name(claim)


def test_what_kubelet_asks_for_becomes_a_request_of_the_contract() -> None:
    context = {
        "size": "1Gi",
        "csi.storage.k8s.io/pod.name": "web",
        "csi.storage.k8s.io/pod.namespace": "default",
        "csi.storage.k8s.io/pod.uid": "0-1",
        "csi.storage.k8s.io/serviceAccount.name": "runner",
        "csi.storage.k8s.io/serviceAccount.tokens": "{}",
        "storage.kubernetes.io/csiProvisionerIdentity": "1-2-x",
    }
    message = request(volume_context=context, readonly=True, secrets={"password": "x"}, publish_context={"a": "b"})
    wanted = codec.read_publish(message, CLAIM)
    assert (wanted.driver, wanted.volume_id, wanted.target_path) == ("acme/disk", "v", "/pods/a/mount")
    assert wanted.options == {"size": "1Gi"}
    assert (wanted.fs_type, wanted.mount_flags, wanted.fs_group) == ("ext4", ("noatime",), 1000)
    assert (wanted.read_only, wanted.access_mode, wanted.block) == (True, "SINGLE_NODE_MULTI_WRITER", False)
    assert dict(wanted.secrets) == {"password": b"x", codec.TOKENS: b"{}"}
    assert (wanted.pod.name, wanted.pod.service_account) == ("web", "runner")
    assert (wanted.must_exist, wanted.ephemeral, wanted.publish_context) == (True, False, {"a": "b"})


def test_an_inline_volume_need_not_exist() -> None:
    own = VolumeClaim("acme/disk", inline=True)
    wanted = codec.read_publish(request(volume_context={codec.EPHEMERAL: "true"}), own)
    assert (wanted.must_exist, wanted.ephemeral) == (False, True)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"volume_id": ""}, "volume_id"),
        ({"target_path": ""}, "target_path"),
        ({"target_path": "relative"}, "absolute path"),
        ({"target_path": "/a/../b"}, "absolute path"),
        ({"target_path": "/"}, "absolute path"),
        ({"volume_capability": pb.VolumeCapability()}, "access type"),
        ({"volume_capability": pb.VolumeCapability(mount=pb.VolumeCapability.MountVolume())}, "access mode"),
        (
            {
                "volume_capability": pb.VolumeCapability(
                    block=pb.VolumeCapability.BlockVolume(), access_mode=MODES(mode=MODES.SINGLE_NODE_WRITER)
                )
            },
            "no block volumes",
        ),
        (
            {
                "volume_capability": pb.VolumeCapability(
                    mount=pb.VolumeCapability.MountVolume(volume_mount_group="wheel"),
                    access_mode=MODES(mode=MODES.SINGLE_NODE_WRITER),
                )
            },
            "group number",
        ),
    ],
)
def test_a_publish_that_lacks_something_is_refused_with_its_name(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        codec.read_publish(request(**changes), CLAIM)


def test_a_block_volume_is_read_where_the_driver_has_them() -> None:
    capability = pb.VolumeCapability(
        block=pb.VolumeCapability.BlockVolume(), access_mode=MODES(mode=MODES.SINGLE_NODE_WRITER)
    )
    assert codec.read_publish(request(volume_capability=capability), VolumeClaim("acme/disk", block=True)).block


def test_usage_is_asked_of_an_absolute_path_alone() -> None:
    asked = pb.NodeGetVolumeStatsRequest(volume_id="v", volume_path="some/path")
    with pytest.raises(NotFound):
        codec.read_stats(asked)
    with pytest.raises(InvalidRequest):
        codec.read_stats(pb.NodeGetVolumeStatsRequest(volume_id="v"))


@pytest.mark.parametrize("bounds", [(-1, 0), (2, 1), (0, -1)])
def test_a_capacity_range_that_is_none_is_refused(bounds: tuple[int, int]) -> None:
    wanted = pb.CapacityRange(required_bytes=bounds[0], limit_bytes=bounds[1])
    with pytest.raises(InvalidRequest, match="capacity_range"):
        codec.read_expand(pb.NodeExpandVolumeRequest(volume_id="v", volume_path="/a", capacity_range=wanted))


def test_capabilities_follow_from_claim_and_hooks() -> None:
    kinds = pb.NodeServiceCapability.RPC

    def announced(claim: VolumeClaim, *hooks: str) -> set[int]:
        return {one.rpc.type for one in codec.node_capabilities(claim, frozenset(hooks)).capabilities}

    always = {kinds.GET_VOLUME_STATS, kinds.VOLUME_CONDITION, kinds.SINGLE_NODE_MULTI_WRITER}
    assert announced(VolumeClaim("a/b", metrics=False)) == {kinds.SINGLE_NODE_MULTI_WRITER}
    assert announced(VolumeClaim("a/b", metrics=False), "volume_stats") == always
    assert announced(CLAIM, "volume_stage", "volume_publish") == always
    assert announced(CLAIM, "volume_expand") == always | {kinds.EXPAND_VOLUME}
    assert announced(VolumeClaim("a/b", fs_group="driver")) == always | {kinds.VOLUME_MOUNT_GROUP}


def test_a_volume_that_is_ill_is_abnormal_and_says_why() -> None:
    answer = codec.write_stats(VolumeStats(total=3, used=1, available=2, condition="the server is gone"))
    assert (answer.volume_condition.abnormal, answer.volume_condition.message) == (True, "the server is gone")
    assert [one.unit for one in answer.usage] == [pb.VolumeUsage.BYTES]


def test_each_token_is_a_secret_of_its_own() -> None:
    """A plugin's error quotes the token, and not the document in which kubelet sends it."""
    tokens = json.dumps({"vault": {"token": "s3cr3t-t0ken", "expirationTimestamp": "2030-01-01T00:00:00Z"}})
    wanted = codec.read_publish(request(volume_context={codec.TOKENS: tokens}), CLAIM)
    told = redact("vault denied s3cr3t-t0ken", codec.hidden(wanted.secrets))
    assert told == "vault denied ***"
    assert wanted.secrets[codec.TOKENS] == tokens.encode()


@pytest.mark.parametrize("document", ["", "{", "[]", '{"a": 1}', '{"a": {"token": 1}}'])
def test_tokens_that_are_none_are_hidden_as_they_are(document: str) -> None:
    assert dict(codec.hidden(Secrets({codec.TOKENS: document.encode()}))) == {codec.TOKENS: document.encode()}


@pytest.mark.parametrize("mode", ["SINGLE_NODE_READER_ONLY", "MULTI_NODE_READER_ONLY"])
def test_a_volume_for_readers_alone_is_read_only(mode: str) -> None:
    capability = pb.VolumeCapability(
        mount=pb.VolumeCapability.MountVolume(), access_mode=MODES(mode=MODES.Mode.Value(mode))
    )
    assert codec.read_publish(request(volume_capability=capability), CLAIM).read_only
