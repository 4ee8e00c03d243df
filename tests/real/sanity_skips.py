"""The specs that csi-sanity skips on nodeplug's drivers, and what excuses each.

Owns: the table, by the words with which csi-sanity skips. Refuses: nothing; `test_csi_sanity.py` compares.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Excuse:
    """Why a group of specs does not concern a driver.

    Attributes:
        lacks: the capability that the driver does not announce, or what else stands in the way.
        because: why it does not.
        specs: what is skipped.
    """

    lacks: str
    because: str
    specs: tuple[str, ...]


def _each(of: str, *specs: str) -> Iterator[str]:
    yield from (f"{of} {spec}" for spec in specs)


_CONTROLLER = "Controller Service [Controller Server]"
_GROUPS = "GroupController Service [GroupController"
_NO_ID = "should fail when no volume id is provided"

NODE: tuple[Excuse, ...] = (
    Excuse(
        "STAGE_UNSTAGE_VOLUME",
        "publish stages (decision 0107)",
        (
            *_each(
                "Node Service NodeStageVolume",
                _NO_ID,
                "should fail when no staging target path is provided",
                "should fail when no volume capability is provided",
            ),
            *_each(
                "Node Service NodeUnstageVolume",
                _NO_ID,
                "should fail when no staging target path is provided",
            ),
        ),
    ),
    Excuse(
        "volume and storage health of a node",
        "alpha, and no kubelet calls it; NodeGetVolumeStats tells the condition",
        (
            *_each("Node Service NodeGetVolumeHealth", _NO_ID, "should return health for a valid volume"),
            "Node Service NodeGetStorageHealth should return appropriate response",
        ),
    ),
)

CONTROLLER: tuple[Excuse, ...] = (
    Excuse(
        "PUBLISH_UNPUBLISH_VOLUME",
        "volumes of a node are attached nowhere",
        (
            *_each(
                f"{_CONTROLLER} ControllerPublishVolume",
                _NO_ID,
                "should fail when no node id is provided",
                "should fail when no volume capability is provided",
                "should fail when publishing more volumes than the node max attach limit",
                "should fail when the node does not exist",
                "should fail when the volume does not exist",
                "should fail when the volume is already published but is incompatible",
            ),
            f"{_CONTROLLER} ControllerUnpublishVolume {_NO_ID}",
            *_each(f"{_CONTROLLER} volume lifecycle", "should work", "should be idempotent"),
        ),
    ),
    Excuse(
        "MODIFY_VOLUME",
        "no bundled driver has something to modify",
        (
            *_each(
                f"{_CONTROLLER} CreateVolume",
                "should create volume with a volume attribute class",
                "should not create volume with an invalid volume attribute class",
            ),
            *_each(
                "ModifyVolume [Controller Server]",
                "should fail if no volume id is given",
                "should fail if specified mutable parameters are not supported by the volume",
                "should fail if volume does not exist",
                "should fail to modify a volume created with a volume attribute class "
                "if new mutable parameters are not supported by volume",
                "should modify a volume created with a volume attribute class",
                "should modify a volume created without a volume attribute class",
            ),
        ),
    ),
    Excuse(
        "GET_SNAPSHOT",
        "alpha; LIST_SNAPSHOTS finds one by its id",
        tuple(
            _each(
                "GetSnapshot [Controller Server]",
                "should return an error",
                "should return an error when the specified snapshot id does not exist",
                "should return snapshot that match the specified snapshot id",
            )
        ),
    ),
    Excuse(
        "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS",
        "alpha; on a node without the snapshot a restore is NOT_FOUND",
        ("CreateSnapshot [Controller Server] should succeed when creating a snapshot with accessibility requirements",),
    ),
    Excuse(
        "volume health of a controller",
        "alpha; the node tells the condition",
        (
            *_each("ControllerGetVolumeHealth [Controller Server]", _NO_ID, "should return health for a valid volume"),
            "ControllerListVolumeHealth [Controller Server] should return appropriate response",
        ),
    ),
    Excuse(
        "GROUP_CONTROLLER_SERVICE",
        "snapshots of several volumes at one moment are not offered",
        (
            f"{_GROUPS} Server] GroupControllerGetCapabilities should return appropriate capabilities",
            *_each(
                f"{_GROUPS} VolumeGroupSnapshots]",
                "CreateVolumeGroupSnapshot should fail when no name is provided",
                "DeleteVolumeGroupSnapshot should fail when no volume id is provided",
                "DeleteVolumeGroupSnapshot should succeed when an invalid volume id is used",
                "GetVolumeGroupSnapshot should fail when an invalid volume id is used",
                "GetVolumeGroupSnapshot should fail when no volume id is provided",
            ),
        ),
    ),
)

PENDING = Excuse(
    "none: pending",
    "csi-sanity itself has switched it off",
    tuple(
        _each(
            f"{_CONTROLLER} ListVolumes pagination",
            "should detect volumes added between pages and accept tokens when the last volume from a page is deleted",
        )
    ),
)

GROWS_NOT = Excuse(
    "EXPAND_VOLUME",
    "these drivers' volumes are as large as what they show",
    tuple(
        _each(
            "Node Service NodeExpandVolume",
            _NO_ID,
            "should fail when no volume path is provided",
            "should fail when volume is not found",
            "should work if node-expand is called after node-publish",
        )
    ),
)

# What each driver of the matrix lacks. Those that create no volumes are asked for the node's specs alone.
EXCUSED: Mapping[str, tuple[Excuse, ...]] = {
    "loopfile": (*NODE, PENDING, *CONTROLLER),
    "hostdir": (*NODE, PENDING, GROWS_NOT),
    "tmpfs": (*NODE, PENDING, GROWS_NOT),
    "image": (*NODE, PENDING, GROWS_NOT),
    "fuse": (*NODE, PENDING, GROWS_NOT),
}


def excused(driver: str) -> frozenset[str]:
    """Return all that csi-sanity may skip on a driver."""
    return frozenset(spec for excuse in EXCUSED[driver] for spec in excuse.specs)


def rows() -> list[str]:
    """Return the rows of the table in the guide to these tests."""
    of: dict[Excuse, list[str]] = {}
    for driver, excuses in EXCUSED.items():
        for excuse in excuses:
            of.setdefault(excuse, []).append(driver)
    return [
        f"| {one.lacks} | {one.because} | {len(one.specs)} | {'all' if len(who) == len(EXCUSED) else ', '.join(who)} |"
        for one, who in of.items()
    ]
