"""The kubelet stand-in for FlexVolume judges drivers as kubelet does; the drivers here are shell scripts."""

import os
from pathlib import Path
from typing import Any

import pytest

from nodeplug import Pod, mount, mounted_at
from nodeplug.flex.commands import Init
from nodeplug.testing import FlexCaller, FlexFailure, FlexNotSupported, FlexVolume

pytestmark = pytest.mark.node
POD = Pod(name="web", namespace="shop", uid="11111111-2222")
VOLUME = FlexVolume("data", options={"size": "1Mi"}, secrets={"token": b"s3cr3t"})
PLAIN = '{"status": "Success", "capabilities": {"attach": false}}'


@pytest.fixture
def make(area: Path) -> Any:
    def build(script: str, init: str = PLAIN) -> FlexCaller:
        caller = FlexCaller(area / "plugins", area / "kubelet", "acme/disk")
        caller.executable.parent.mkdir(parents=True)
        other = """*) echo '{"status": "Not supported"}';;"""
        caller.executable.write_text(f"#!/bin/sh\ncase $1 in\ninit) echo '{init}';;\n{script}\n{other}\nesac\n")
        caller.executable.chmod(0o755)
        return caller

    return build


MOUNTS = """mount) mount -t tmpfs tmpfs "$2" && echo '{"status": "Success"}';;"""
UNMOUNTS = """unmount) umount "$2" && echo '{"status": "Success"}';;"""


@pytest.mark.programs("mount")
def test_mount_makes_the_target_and_passes_kubelets_options(make: Any) -> None:
    caller = make(MOUNTS)
    target = caller.mount(POD, VOLUME, fs_group=2000)
    assert str(target).endswith("kubelet/pods/11111111-2222/volumes/acme~disk/data")
    verb, directory, text = caller.calls[-1]
    assert (verb, directory) == ("mount", str(target))
    assert '"kubernetes.io/secret/token": "czNjcjN0"' in text
    assert '"kubernetes.io/mounterArgs.FsGroup": "2000"' in text


@pytest.mark.programs("mount", "umount")
def test_unmount_removes_the_directory(make: Any) -> None:
    caller = make(f"{MOUNTS}\n{UNMOUNTS}")
    target = caller.mount(POD, VOLUME)
    caller.unmount(POD, "data")
    assert not target.exists()


@pytest.mark.programs("mount")
def test_a_mount_point_at_the_target_is_success_without_a_call(make: Any) -> None:
    caller = make(MOUNTS)
    caller.mount(POD, VOLUME)
    before = len(caller.calls)
    caller.mount(POD, VOLUME)
    assert len(caller.calls) == before


def test_one_byte_on_stderr_breaks_the_answer(make: Any) -> None:
    caller = make("""mount) echo warning >&2; echo '{"status": "Success"}';;""")
    with pytest.raises(FlexFailure, match="failed to unmarshal output for command: mount"):
        caller.mount(POD, VOLUME)


def test_success_with_a_non_zero_exit_is_a_driver_bug(make: Any) -> None:
    caller = make("""mount) echo '{"status": "Success"}'; exit 1;;""")
    with pytest.raises(FlexFailure, match="driver bug"):
        caller.mount(POD, VOLUME)


def test_a_failure_with_exit_zero_logs_no_argv_and_with_another_exit_it_does(make: Any, area: Path) -> None:
    quiet = make("""mount) echo '{"status": "Failure", "message": "no"}';;""")
    with pytest.raises(FlexFailure) as caught:
        quiet.mount(POD, VOLUME)
    assert "czNjcjN0" not in str(caught.value)
    quiet.executable.write_text('#!/bin/sh\necho \'{"status": "Failure"}\'\nexit 2\n')
    with pytest.raises(FlexFailure, match="czNjcjN0"):
        quiet.mount(POD, VOLUME)


def test_a_failed_mount_removes_the_target(make: Any) -> None:
    caller = make("""mount) echo '{"status": "Failure"}';;""")
    with pytest.raises(FlexFailure):
        caller.mount(POD, VOLUME)
    assert not caller.target(POD, "data").exists()


def test_not_supported_is_remembered_until_the_next_probe(make: Any) -> None:
    caller = make("")
    caller.probe()
    for _ in range(2):
        with pytest.raises(FlexFailure, match="exit status 32"):
            caller.mount(POD, VOLUME)
    assert [argv[0] for argv in caller.calls] == ["init", "mount"]
    caller.probe()
    with pytest.raises(FlexFailure):
        caller.mount(POD, VOLUME)
    assert [argv[0] for argv in caller.calls] == ["init", "mount", "init", "mount"]


def test_capabilities_that_init_leaves_out_have_kubelets_defaults(make: Any) -> None:
    caller = make("", init='{"status": "Success"}')
    assert caller.capabilities["attach"] is True
    assert caller.capabilities["supportsMetrics"] is False


@pytest.mark.programs("mount")
def test_an_unmount_that_leaves_the_mount_is_a_failure(make: Any) -> None:
    caller = make(f'{MOUNTS}\nunmount) echo \'{{"status": "Success"}}\';;')
    caller.mount(POD, VOLUME)
    with pytest.raises(FlexFailure, match="cannot remove"):
        caller.unmount(POD, "data")


@pytest.mark.programs("mount", "umount")
def test_a_driver_may_remove_the_directory_itself(make: Any) -> None:
    caller = make(f"""{MOUNTS}\nunmount) umount "$2" && rmdir "$2" && echo '{{"status": "Success"}}';;""")
    target = caller.mount(POD, VOLUME)
    caller.unmount(POD, "data")
    assert not target.exists()


@pytest.mark.programs("umount")
@pytest.mark.usefixtures("has_fuse")
def test_a_mount_whose_server_died_is_unmounted(make: Any) -> None:
    caller = make(UNMOUNTS)
    target = caller.target(POD, "data")
    target.mkdir(parents=True)
    server = os.open("/dev/fuse", os.O_RDWR)
    mount("dead", str(target), "fuse", options=[f"fd={server}", "rootmode=40000", "user_id=0", "group_id=0"])
    os.close(server)
    with pytest.raises(OSError, match="not connected"):
        target.stat()
    caller.unmount(POD, "data")
    assert not target.exists()


def test_unmount_of_a_missing_target_makes_no_call(make: Any) -> None:
    caller = make(UNMOUNTS)
    caller.unmount(POD, "data")
    assert caller.calls == []


@pytest.mark.programs("mount")
def test_a_driver_with_attach_is_attached_mounted_and_bound(make: Any) -> None:
    caller = make(
        """attach) echo '{"status": "Success", "device": "/dev/x"}';;
mountdevice) mount -t tmpfs tmpfs "$2" && echo '{"status": "Success"}';;""",
        init='{"status": "Success"}',
    )
    target = caller.mount(POD, VOLUME)
    assert mounted_at(str(target)) is not None
    verbs = [argv[0] for argv in caller.calls]
    assert verbs == ["init", "getvolumename", "attach", "waitforattach", "mountdevice", "mount"]
    caller.unmount(POD, "data")
    caller.detach("data")
    assert mounted_at(str(caller.device_target("data"))) is None


def test_a_missing_executable_is_a_failure(area: Path) -> None:
    with pytest.raises(FlexFailure, match="cannot execute"):
        FlexCaller(area, area, "acme/none").probe()


def test_a_verb_without_support_is_told_apart_from_a_failure(make: Any) -> None:
    caller = make("", init='{"status": "Not supported"}')
    with pytest.raises(FlexNotSupported):
        caller.call(Init())
