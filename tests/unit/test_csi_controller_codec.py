"""CSI's Controller on the wire: what is to be created, places in lists, and what a driver says that it can."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeplug import Exhausted, InvalidRequest, ProvisionedVolume, Snapshot, VolumeClaim, VolumeId, VolumeRoom
from nodeplug.contract.errors import UnknownPlace
from nodeplug.csi import controller_codec as codec
from nodeplug.pb import csi_v1_pb2 as pb

MODES = pb.VolumeCapability.AccessMode
CLAIM = VolumeClaim("acme/disk", node_local=True, clones=True)
HERE = {"disk.acme/node": "a"}
KINDS = pb.ControllerServiceCapability.RPC
EVERY = frozenset(
    {
        *("volume_create", "volume_delete", "volume_list", "volume_capacity", "volume_expand"),
        *("volume_snapshot", "volume_snapshot_delete", "volume_snapshot_list"),
    }
)


def capability(mode: Any = MODES.SINGLE_NODE_WRITER, **mount: Any) -> pb.VolumeCapability:
    return pb.VolumeCapability(mount=pb.VolumeCapability.MountVolume(**mount), access_mode=MODES(mode=mode))


def request(**changes: Any) -> pb.CreateVolumeRequest:
    parts: dict[str, Any] = {"name": "pvc-1", "volume_capabilities": [capability(fs_type="xfs")]}
    return pb.CreateVolumeRequest(**(parts | changes))


def requirement(*nodes: str) -> pb.TopologyRequirement:
    return pb.TopologyRequirement(requisite=[pb.Topology(segments={"disk.acme/node": node}) for node in nodes])


def test_everything_that_is_asked_for_reaches_the_driver() -> None:
    read = codec.read_create(
        request(
            capacity_range=pb.CapacityRange(required_bytes=1, limit_bytes=2),
            parameters={"kind": "fast", "csi.storage.k8s.io/pvc/name": "data"},
            secrets={"key": "s3cret"},
            accessibility_requirements=requirement("b", "a"),
        ),
        CLAIM,
        HERE,
    )
    assert (read.name, read.size, read.limit, read.fs_type, read.block) == ("pvc-1", 1, 2, "xfs", False)
    assert (read.parameters, read.access_modes) == ({"kind": "fast"}, ("SINGLE_NODE_WRITER",))
    assert (read.secrets["key"], "s3cret" in repr(read)) == (b"s3cret", False)
    assert read.topology == ({"disk.acme/node": "b"}, HERE)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"volume_capabilities": []},
        {"volume_capabilities": [pb.VolumeCapability(mount=pb.VolumeCapability.MountVolume())]},
        {"volume_capabilities": [capability(MODES.MULTI_NODE_MULTI_WRITER)]},
        {
            "volume_capabilities": [
                pb.VolumeCapability(
                    block=pb.VolumeCapability.BlockVolume(), access_mode=MODES(mode=MODES.SINGLE_NODE_WRITER)
                )
            ]
        },
        {"capacity_range": pb.CapacityRange(required_bytes=2, limit_bytes=1)},
        {"capacity_range": pb.CapacityRange(required_bytes=-1)},
        {"volume_content_source": pb.VolumeContentSource()},
    ],
)
def test_what_is_missing_or_impossible_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        codec.read_create(request(**changes), CLAIM, HERE)


def test_a_driver_that_copies_no_volumes_is_not_asked_to() -> None:
    source = pb.VolumeContentSource(volume=pb.VolumeContentSource.VolumeSource(volume_id="v"))
    with pytest.raises(InvalidRequest, match="does not copy volumes"):
        codec.read_create(request(volume_content_source=source), VolumeClaim("acme/disk"), {})
    assert codec.read_create(request(volume_content_source=source), CLAIM, HERE).source == "v"


def test_a_volume_for_other_nodes_alone_is_none_of_this_one() -> None:
    with pytest.raises(
        Exhausted, match=r"wanted where disk.acme/node=b; disk.acme/node=c; this node .* disk.acme/node=a"
    ):
        codec.read_create(request(accessibility_requirements=requirement("b", "c")), CLAIM, HERE)


def test_other_nodes_have_no_room_here() -> None:
    where = pb.GetCapacityRequest(accessible_topology=pb.Topology(segments={"disk.acme/node": "b"}))
    assert codec.read_capacity(where, CLAIM, HERE) is None
    assert codec.read_capacity(pb.GetCapacityRequest(volume_capabilities=[pb.VolumeCapability()]), CLAIM, HERE)


@pytest.mark.parametrize("largest", [0, 3 << 20])
def test_the_largest_volume_is_told_also_if_there_is_room_for_none(largest: int) -> None:
    told = codec.write_room(VolumeRoom(available=5 << 20, largest=largest))
    again = pb.GetCapacityResponse.FromString(told.SerializeToString())
    assert (again.available_capacity, again.HasField("maximum_volume_size")) == (5 << 20, True)
    assert again.maximum_volume_size.value == largest
    assert not codec.write_room(VolumeRoom(available=5 << 20)).HasField("maximum_volume_size")


def test_an_answer_names_the_node_and_the_source() -> None:
    wanted = codec.read_create(
        request(
            volume_content_source=pb.VolumeContentSource(
                snapshot=pb.VolumeContentSource.SnapshotSource(snapshot_id="s")
            )
        ),
        CLAIM,
        HERE,
    )
    written = codec.write_volume(ProvisionedVolume(volume_id=VolumeId("v"), size=3, options={"a": "b"}), HERE, wanted)
    assert [dict(one.segments) for one in written.accessible_topology] == [HERE]
    assert written.content_source.snapshot.snapshot_id == "s"
    assert (written.volume_id, written.capacity_bytes, dict(written.volume_context)) == ("v", 3, {"a": "b"})


def test_only_what_a_driver_has_is_announced() -> None:
    def kinds(hooks: frozenset[str], claim: VolumeClaim = CLAIM) -> set[int]:
        return {one.rpc.type for one in codec.controller_capabilities(claim, hooks).capabilities}

    assert kinds(EVERY) == {*KINDS.Type.values()} - {
        *(KINDS.UNKNOWN, KINDS.PUBLISH_UNPUBLISH_VOLUME, KINDS.PUBLISH_READONLY, KINDS.LIST_VOLUMES_PUBLISHED_NODES)
    }
    assert kinds(frozenset({"volume_expand", "volume_list"})) == set()
    assert kinds(frozenset({"volume_create"}), VolumeClaim("acme/disk")) == {
        KINDS.CREATE_DELETE_VOLUME,
        KINDS.SINGLE_NODE_MULTI_WRITER,
    }


@given(st.sets(st.text(min_size=1)), st.integers(1, 5), st.randoms())
def test_the_pages_of_a_list_have_every_entry_once_though_some_are_deleted_meanwhile(
    names: set[str], most: int, random: Any
) -> None:
    left, token = sorted(names), ""
    seen: list[str] = []
    gone: set[str] = set()
    while True:
        shown, token = codec.page(left, left, token, most)
        seen += shown
        if not token:
            break
        if len(left) > 1:
            gone.add(left.pop(random.randrange(len(left))))
    assert len(seen) == len(set(seen))
    assert names - gone <= set(seen) <= names


@pytest.mark.parametrize("token", ["x", "YWZ0ZXI", "é", "bm9uZQ=="])
def test_a_place_that_is_none_is_told_apart_from_the_end(token: str) -> None:
    with pytest.raises(UnknownPlace, match="begin without it"):
        codec.page(["a"], ["a"], token, 0)


def test_the_time_of_a_snapshot_keeps_its_fraction() -> None:
    written = codec.write_snapshot(Snapshot(snapshot_id="s", volume_id=VolumeId("v"), size=1, created=12.25))
    assert (written.creation_time.seconds, written.creation_time.nanos, written.ready_to_use) == (12, 250_000_000, True)
