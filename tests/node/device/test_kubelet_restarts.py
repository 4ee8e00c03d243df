"""The stand-in starts, restarts and reboots as kubelet does."""

import json
import socket
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from tests.programs import need

from nodeplug import unmount
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from nodeplug.testing import AdmissionError, Kubelet
from nodeplug.testing.kubelet import Timeouts
from nodeplug.testing.kubelet.folder import Folders, Wipe
from nodeplug.testing.kubelet.recording import RecordingPlugin

pytestmark = pytest.mark.unprivileged

Run = Callable[[Coroutine[Any, Any, None]], None]
RESOURCE = "example.com/thing"


def plugin_of(kubelet: Kubelet, count: int = 4, **more: Any) -> RecordingPlugin:
    return RecordingPlugin(RESOURCE, kubelet.device_plugins, {f"d{number}": True for number in range(count)}, **more)


def read(kubelet: Kubelet) -> dict[str, Any]:
    return dict(json.loads((kubelet.device_plugins / "kubelet_internal_checkpoint").read_text()))


@pytest.mark.parametrize(
    ("old_style", "wipe", "left"),
    [
        (False, None, {"file", "folder", "kubelet.sock", "DEPRECATION"}),
        (True, None, {"folder", "kubelet.sock", "DEPRECATION"}),
        (False, "nothing", {"file", "folder", "kubelet.sock", "DEPRECATION", "plugin.sock"}),
    ],
)
def test_start_removes_sockets_or_every_file_but_the_checkpoint(
    root: Path, run: Run, *, old_style: bool, wipe: Wipe | None, left: set[str]
) -> None:
    async def story() -> None:
        kubelet = Kubelet(root, old_style=old_style)
        (kubelet.device_plugins / "folder").mkdir(parents=True)
        (kubelet.device_plugins / "folder" / "file").touch()
        for name in ("file", "kubelet_internal_checkpoint"):
            (kubelet.device_plugins / name).touch()
        for name in ("plugin.sock", "folder/plugin.sock"):
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(kubelet.device_plugins / name))
        await kubelet.start(wipe=wipe)
        found = {path.name for path in kubelet.device_plugins.iterdir()}
        assert found == left | {"kubelet_internal_checkpoint"}
        assert {path.name for path in (kubelet.device_plugins / "folder").iterdir()} == {"file", "plugin.sock"}
        await kubelet.stop()

    run(story())


def test_old_kubelet_answers_before_it_dials_and_never_dials_again(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root, old_style=True, dial_timeout=0.2) as kubelet:
            async with grpc.aio.insecure_channel(f"unix:{kubelet.socket}") as channel:
                request = pb.RegisterRequest(version="v1beta1", endpoint="absent.sock", resource_name=RESOURCE)
                await pb_grpc.RegistrationStub(channel).Register(request)
            await kubelet.until(lambda: bool(kubelet.failures))
            words = "failed to dial device plugin: context deadline exceeded"
            assert kubelet.failures == [f"{RESOURCE}: {words}"]
            assert RESOURCE not in kubelet.resources

    run(story())


def test_failing_options_fail_the_registration(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            plugin = plugin_of(kubelet, failure="options")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await plugin.register()
            wanted = "failed to get device plugin options: rpc error: code = Internal desc = no options today"
            assert caught.value.details() == wanted
            assert RESOURCE not in kubelet.resources
            await plugin.stop()

    run(story())


def test_endpoint_is_a_name_below_the_plugin_folder(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            plugin = plugin_of(kubelet)
            (kubelet.device_plugins / "sub").mkdir()
            plugin.folder = kubelet.device_plugins / "sub"
            await plugin.serve()
            async with grpc.aio.insecure_channel(f"unix:{kubelet.socket}") as channel:
                endpoint = f"/sub/{plugin.socket.name}"
                request = pb.RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=RESOURCE)
                await pb_grpc.RegistrationStub(channel).Register(request)
            await kubelet.until_allocatable(RESOURCE, 4)
            await plugin.stop()

    run(story())


@pytest.fixture
def own_disk(has_loop_devices: None, root: Path) -> Iterator[Path]:
    """An ext4 that nobody else writes to: on a shared one another's file may take the number of a removed socket.

    With a journal, for without one ext4 keeps a number back for some seconds (ialloc.c, recently_deleted).
    """
    need("mkfs.ext4", "mount")
    image, folder = root / "image", root / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-J", "size=4", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        yield folder
    finally:
        unmount(str(folder))


def test_recreated_socket_can_have_the_same_inode_number(own_disk: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(own_disk) as kubelet:
            before = kubelet.socket.stat()
            await kubelet.recreate_socket(same_inode=True)
            after = kubelet.socket.stat()
            assert after.st_ino == before.st_ino
            assert after.st_ctime_ns != before.st_ctime_ns

    run(story())


def test_recreated_socket_drops_no_stream(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            plugin = plugin_of(kubelet)
            await plugin.register()
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.recreate_socket()
            plugin.mark(d0=False)
            await kubelet.until_allocatable(RESOURCE, 3)
            await plugin.stop()

    run(story())


def test_checkpoint_remembers_healthy_ids_and_devices_by_node(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            plugin = plugin_of(kubelet, nodes={"d0": [0], "d1": [0, 1], "d2": [1]})
            await plugin.register()
            plugin.mark(sick=False)
            await kubelet.until(lambda: kubelet.capacity(RESOURCE) == 5)
            await kubelet.admit("pod", {RESOURCE: 4})
            (entry,) = read(kubelet)["Data"]["PodDeviceEntries"]
            assert entry["DeviceIDs"] == {"-1": ["d3"], "0": ["d0", "d1"], "1": ["d1", "d2"]}
            assert read(kubelet)["Data"]["RegisteredDevices"] == {RESOURCE: ["d0", "d1", "d2", "d3"]}
            await plugin.stop()

    run(story())


def test_another_kubelet_on_the_same_folder_knows_what_pods_hold(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as first:
            plugin = plugin_of(first)
            await plugin.register()
            await first.until_allocatable(RESOURCE, 4)
            await first.admit("pod", {RESOURCE: 3})
        await plugin.stop()
        async with Kubelet(root) as second:
            await plugin.register()
            await second.until_allocatable(RESOURCE, 4)
            assert (await second.admit("pod", {RESOURCE: 3}))[RESOURCE].envs == {"GOT": "1"}
            assert len(plugin.allocated) == 1
            with pytest.raises(AdmissionError, match="Requested: 2, Available: 1"):
                await second.admit("late", {RESOURCE: 2})
            await plugin.stop()

    run(story())


@pytest.mark.parametrize("damage", ["{", '{"Data": {"PodDeviceEntries": []}}', ""])
def test_damaged_checkpoint_is_gone_on_without(root: Path, run: Run, damage: str) -> None:
    async def story() -> None:
        kubelet = Kubelet(root)
        kubelet.device_plugins.mkdir()
        (kubelet.device_plugins / "kubelet_internal_checkpoint").write_text(damage)
        async with kubelet:
            assert kubelet.resources == {}

    run(story())


def test_checkpoint_with_a_wrong_checksum_is_not_believed(root: Path, run: Run) -> None:
    async def story() -> None:
        kubelet = Kubelet(root)
        async with kubelet:
            plugin = plugin_of(kubelet)
            await plugin.register()
            await kubelet.until_allocatable(RESOURCE, 4)
            await plugin.stop()
        document = read(kubelet)
        document["Data"]["RegisteredDevices"]["example.com/more"] = []
        (kubelet.device_plugins / "kubelet_internal_checkpoint").write_text(json.dumps(document))
        async with kubelet:
            assert kubelet.resources == {}

    run(story())


def test_resources_come_back_without_devices_and_go_after_the_grace(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root, timeouts=Timeouts(grace=0.3)) as kubelet:
            plugin = plugin_of(kubelet)
            await plugin.register()
            await kubelet.until_allocatable(RESOURCE, 4)
            assert kubelet.listed(RESOURCE)
            await kubelet.restart()
            assert RESOURCE in kubelet.resources
            assert not kubelet.listed(RESOURCE)
            assert (kubelet.capacity(RESOURCE), kubelet.allocatable(RESOURCE)) == (0, 0)
            await kubelet.until(lambda: kubelet.capacity(RESOURCE) == 0 and RESOURCE not in kubelet.resources)
            await plugin.stop()

    run(story())


def test_resource_that_pods_alone_remember_is_unregistered(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root, grace=0.0) as kubelet:
            plugin = plugin_of(kubelet)
            await plugin.register()
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.admit("pod", {RESOURCE: 1})
            await plugin.stop()
            await kubelet.until(lambda: kubelet.capacity(RESOURCE) == 0)
            with pytest.raises(AdmissionError, match=f"cannot allocate unregistered device {RESOURCE}"):
                await kubelet.admit("late", {RESOURCE: 1})

    run(story())


def test_pods_that_run_need_nothing_after_a_restart(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            plugin = plugin_of(kubelet)
            await plugin.register()
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.admit("pod", {RESOURCE: 1})
            await kubelet.admit("staged", {RESOURCE: 1}, container="prepare", init=True)
            await kubelet.admit("staged", {RESOURCE: 1})
            await kubelet.restart()
            rejected = await kubelet.readmit()
            assert set(rejected) == {("default", "staged")}, "init containers that ended are checked again"
            assert "no healthy devices present" in str(rejected["default", "staged"])
            await plugin.stop()

    run(story())


def test_reboot_rejects_every_pod_that_comes_before_its_plugin(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            plugin = plugin_of(kubelet)
            await plugin.register()
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.admit("pod", {RESOURCE: 1})
            await kubelet.admit("plain", {})
            boot = read(kubelet)["BootID"]
            rejected = await kubelet.reboot()
            assert {place: str(error) for place, error in rejected.items()} == {
                ("default", "pod"): f"no healthy devices present; cannot allocate unhealthy devices {RESOURCE}"
            }
            await plugin.stop()
            await plugin.register()
            await kubelet.until_allocatable(RESOURCE, 4)
            assert read(kubelet)["BootID"] != boot
            await kubelet.admit("again", {RESOURCE: 4})
            await plugin.stop()

    run(story())


def test_kubelet_that_knows_no_pods_yet_frees_nothing(root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            plugin = plugin_of(kubelet)
            await plugin.register()
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.admit("pod", {RESOURCE: 4})
            kubelet.pods_known = False
            kubelet.remove_pod("pod")
            with pytest.raises(AdmissionError, match="Requested: 1, Available: 0"):
                await kubelet.admit("late", {RESOURCE: 1})
            kubelet.pods_known = True
            await kubelet.admit("later", {RESOURCE: 1})
            await plugin.stop()

    run(story())


def test_timeouts_are_scaled_together() -> None:
    scaled = Timeouts().scaled(0.01)
    assert (scaled.dial, scaled.grace, scaled.prestart, scaled.info) == (0.1, 3.0, 0.3, 0.01)


def test_start_skips_files_that_their_owner_removes_meanwhile(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = Folders(root)
    folders.make()
    (folders.device_plugins / "file").touch()
    present = [folders.device_plugins / "gone", folders.device_plugins / "file"]
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(present))
    folders.clean("files")
    monkeypatch.undo()
    assert {path.name for path in folders.device_plugins.iterdir()} == {"DEPRECATION"}
