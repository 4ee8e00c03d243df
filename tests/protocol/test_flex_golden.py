"""FlexVolume argv as kubelet 1.20 and 1.36 write it, to the exact bytes of the answers."""

import pytest

from nodeplug.contract.errors import Exhausted, NotSupported
from nodeplug.contract.values import Pod, Secrets
from nodeplug.flex import codec
from nodeplug.flex.commands import (
    Command,
    ExpandFs,
    ExpandVolume,
    Mount,
    MountDevice,
    Unmount,
    VolumeOptions,
    WaitForAttach,
)

MOUNT_JSON = (
    '{"kubernetes.io/fsType":"ext4","kubernetes.io/mounterArgs.FsGroup":"2000",'
    '"kubernetes.io/pod.name":"web-0","kubernetes.io/pod.namespace":"shop",'
    '"kubernetes.io/pod.uid":"5b0e6c1e-6f5a-4a8e-9d0a-3b8f3f2f1a11","kubernetes.io/pvOrVolumeName":"data",'
    '"kubernetes.io/readwrite":"ro","kubernetes.io/secret/token":"czNjcjN0","kubernetes.io/serviceAccount.name":"web",'
    '"name":"data","size":"64Mi"}'
)
PLAIN = VolumeOptions(fs_type="ext4", volume_name="data", own={"size": "64Mi"})
PLAIN_JSON = (
    '{"kubernetes.io/fsType":"ext4","kubernetes.io/pvOrVolumeName":"data","kubernetes.io/readwrite":"rw","size":"64Mi"}'
)
POD_DIR = "/var/lib/kubelet/pods/5b0e6c1e-6f5a-4a8e-9d0a-3b8f3f2f1a11/volumes/nodeplug~loopfile/data"
DEVICE_DIR = "/var/lib/kubelet/plugins/kubernetes.io/flexvolume/nodeplug/loopfile/mounts/data"


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        pytest.param(
            ["mount", POD_DIR, MOUNT_JSON],
            Mount(
                POD_DIR,
                VolumeOptions(
                    fs_type="ext4",
                    read_only=True,
                    volume_name="data",
                    pod=Pod("web-0", "shop", "5b0e6c1e-6f5a-4a8e-9d0a-3b8f3f2f1a11", "web"),
                    fs_group=2000,
                    secrets=Secrets({"token": b"s3cr3t"}),
                    own={"name": "data", "size": "64Mi"},
                ),
            ),
            id="mount",
        ),
        pytest.param(["unmount", POD_DIR], Unmount(POD_DIR), id="unmount"),
        pytest.param(
            ["mountdevice", DEVICE_DIR, "/dev/sdb", PLAIN_JSON],
            MountDevice(DEVICE_DIR, "/dev/sdb", PLAIN),
            id="mountdevice",
        ),
        pytest.param(["waitforattach", "/dev/sdb", PLAIN_JSON], WaitForAttach("/dev/sdb", PLAIN), id="waitforattach"),
        pytest.param(
            ["expandfs", PLAIN_JSON, "/dev/sdb", DEVICE_DIR, "2147483648", "1073741824"],
            ExpandFs(PLAIN, "/dev/sdb", DEVICE_DIR, 2147483648, 1073741824),
            id="expandfs",
        ),
        pytest.param(
            ["expandvolume", PLAIN_JSON, DEVICE_DIR, "2147483648", "1073741824"],
            ExpandVolume(PLAIN, DEVICE_DIR, 2147483648, 1073741824),
            id="expandvolume",
        ),
    ],
)
def test_argv_of_kubelet_means(argv: list[str], command: Command) -> None:
    assert codec.decode(argv) == command


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (codec.DriverStatus(), b'{"status": "Success"}\n'),
        (codec.DriverStatus(device="/dev/sdb"), b'{"status": "Success", "device": "/dev/sdb"}\n'),
        (codec.DriverStatus(device=""), b'{"status": "Success", "device": ""}\n'),
        (codec.DriverStatus(attached=False), b'{"status": "Success", "attached": false}\n'),
        (codec.DriverStatus(new_size=1024), b'{"status": "Success", "volumeNewSize": 1024}\n'),
    ],
)
def test_a_success_is_one_json_object_on_one_line(status: codec.DriverStatus, line: bytes) -> None:
    assert codec.encode(status) == line


def test_a_failure_is_one_json_object_on_one_line() -> None:
    assert codec.encode_error(Exhausted("no space\nleft")) == b'{"status": "Failure", "message": "no space\\nleft"}\n'


def test_not_supported_is_spelled_as_kubelet_spells_it() -> None:
    assert codec.encode_error(NotSupported("no attach")) == b'{"status": "Not supported", "message": "no attach"}\n'
