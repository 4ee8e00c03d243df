"""What the kubelet stand-in for FlexVolume does itself: ownership, defaults, waiting, growing, and old ways to ask."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from nodeplug import Pod, mounted_at
from nodeplug.testing import Backoff, FlexCaller, FlexFailure, FlexNotSupported, FlexVolume

pytestmark = pytest.mark.node
POD = Pod(name="web", namespace="shop", uid="11111111-2222")
VOLUME = FlexVolume("data", options={"size": "1Mi"}, secrets={"token": b"s3cr3t"})
PLAIN = '{"status": "Success", "capabilities": {"attach": false}}'
ATTACH = '{"status": "Success"}'
MOUNTS = """mount) mount -t tmpfs tmpfs "$2" && mkdir "$2/d" && touch "$2/d/f" && ln -s f "$2/d/l" \\
&& chmod 600 "$2/d/f" && echo '{"status": "Success"}';;"""
GROUP = 4242


@pytest.fixture
def make(area: Path) -> Any:
    def build(script: str, init: str = PLAIN, **more: Any) -> FlexCaller:
        caller = FlexCaller(area / "plugins", area / "kubelet", "acme/disk", **more)
        caller.executable.parent.mkdir(parents=True)
        other = """*) echo '{"status": "Not supported"}';;"""
        caller.executable.write_text(f"#!/bin/sh\ncase $1 in\ninit) echo '{init}';;\n{script}\n{other}\nesac\n")
        caller.executable.chmod(0o755)
        return caller

    return build


def owner(path: Path) -> tuple[int, str]:
    found = path.lstat()
    return found.st_gid, oct(stat.S_IMODE(found.st_mode))


# --- fsGroup


@pytest.mark.programs("mount")
def test_the_whole_tree_gets_the_group(make: Any) -> None:
    target = make(MOUNTS).mount(POD, VOLUME, fs_group=GROUP)
    assert owner(target / "d")[0] == GROUP
    assert (target / "d").stat().st_mode & stat.S_ISGID
    assert owner(target / "d" / "f") == (GROUP, "0o660")
    assert target.stat().st_gid == GROUP


@pytest.mark.programs("mount")
def test_a_symlink_is_owned_and_not_followed(make: Any, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch()
    linking = MOUNTS.replace("ln -s f", f"ln -s {outside}")
    target = make(linking).mount(POD, VOLUME, fs_group=GROUP)
    assert owner(target / "d" / "l")[0] == GROUP
    assert outside.stat().st_gid == 0


@pytest.mark.programs("mount")
@pytest.mark.parametrize("kind", ["capability", "read-only", "no group"])
def test_the_tree_is_left_alone(make: Any, kind: str) -> None:
    init = PLAIN.replace("false}", 'false, "fsGroup": false}') if kind == "capability" else PLAIN
    volume = FlexVolume("data", read_only=kind == "read-only")
    target = make(MOUNTS, init).mount(POD, volume, fs_group=None if kind == "no group" else GROUP)
    assert owner(target / "d" / "f") == (0, "0o600")


@pytest.mark.programs("mount")
def test_a_root_that_is_right_stops_the_walk(make: Any) -> None:
    ready = MOUNTS.replace("&& echo", f'&& chgrp {GROUP} "$2" && chmod 2770 "$2" && echo')
    target = make(ready).mount(POD, VOLUME, fs_group=GROUP, policy="OnRootMismatch")
    assert owner(target / "d" / "f") == (0, "0o600")


# --- defaults


@pytest.mark.programs("mount")
def test_a_mount_that_is_not_supported_is_a_bind_of_the_device(make: Any) -> None:
    caller = make(
        """mountdevice) mount -t tmpfs tmpfs "$2" && touch "$2/x" && echo '{"status": "Success"}';;""", ATTACH
    )
    target = caller.mount(POD, FlexVolume("data", read_only=True))
    assert (target / "x").exists()
    found = mounted_at(str(target))
    assert found is not None
    assert found.read_only


def test_a_mountdevice_that_is_not_supported_mounts_the_device(make: Any) -> None:
    caller = make("""waitforattach) echo '{"status": "Success", "device": "tmpfs"}';;""", ATTACH)
    caller.mount(POD, FlexVolume("data", fs_type="tmpfs"))
    found = mounted_at(str(caller.device_target("data")))
    assert found is not None
    assert found.fs_type == "tmpfs"


def test_a_mountdevice_that_is_not_supported_does_nothing_without_a_device(make: Any) -> None:
    caller = make("", ATTACH)
    caller.mount(POD, VOLUME)
    assert mounted_at(str(caller.device_target("data"))) is None


@pytest.mark.programs("mount")
def test_unmounts_that_are_not_supported_are_kubelets_own(make: Any) -> None:
    caller = make("""mountdevice) mount -t tmpfs tmpfs "$2" && echo '{"status": "Success"}';;""", ATTACH)
    target = caller.mount(POD, VOLUME)
    caller.unmount(POD, "data")
    caller.detach("data")
    assert not target.exists()
    assert not caller.device_target("data").exists()


@pytest.mark.parametrize(
    ("answer", "known"),
    [('"Success", "attached": true', True), ('"Success", "attached": false', False), ('"Not supported"', None)],
)
def test_is_attached_is_yes_no_or_unknown(make: Any, answer: str, known: bool | None) -> None:
    caller = make(f"isattached) echo '{{\"status\": {answer}}}';;", ATTACH)
    assert caller.is_attached(VOLUME) is known


def test_a_getvolumename_that_fails_stops_the_mount(make: Any) -> None:
    caller = make("""getvolumename) echo '{"status": "Failure", "message": "no"}';;""", ATTACH)
    with pytest.raises(FlexFailure, match="getvolumename command failed"):
        caller.mount(POD, VOLUME)


def test_the_answer_to_getvolumename_is_ignored(make: Any) -> None:
    caller = make("""getvolumename) echo '{"status": "Success", "volumeName": "other"}';;""", ATTACH)
    assert caller.mount(POD, VOLUME).name == "data"


# --- capabilities


@pytest.mark.programs("mount")
def test_metrics_and_relabelling_follow_the_capabilities(make: Any) -> None:
    init = PLAIN.replace("false}", 'false, "supportsMetrics": true, "selinuxRelabel": false}')
    caller = make(MOUNTS, init)
    caller.mount(POD, VOLUME)
    usage = caller.metrics(POD, "data")
    assert usage is not None
    assert usage.f_blocks > 0
    assert caller.attributes(VOLUME) == {"readOnly": False, "managed": True, "selinuxRelabel": False}


@pytest.mark.programs("mount")
def test_there_are_no_metrics_by_default(make: Any) -> None:
    caller = make(MOUNTS)
    caller.mount(POD, VOLUME)
    assert caller.metrics(POD, "data") is None


@pytest.mark.programs("mount")
def test_expandfs_names_the_pods_directory_and_sends_no_secret(make: Any) -> None:
    caller = make(f'{MOUNTS}\nexpandfs) echo \'{{"status": "Success"}}\';;')
    target = caller.mount(POD, VOLUME)
    assert caller.expand_fs(POD, VOLUME, new_size=2048, old_size=1024)
    verb, options, device, path, *sizes = caller.calls[-1]
    assert (verb, device, path, sizes) == ("expandfs", "", str(target), ["2048", "1024"])
    assert "secret" not in options


def test_expandfs_names_the_devices_directory_of_a_driver_with_attach(make: Any) -> None:
    caller = make("""expandfs) echo '{"status": "Success"}';;""", ATTACH)
    caller.expand_fs(POD, VOLUME, new_size=2, old_size=1, device="/dev/x")
    assert caller.calls[-1][2:4] == ("/dev/x", str(caller.device_target("data")))


def test_a_driver_that_needs_no_resize_is_not_asked(make: Any) -> None:
    caller = make("", PLAIN.replace("false}", 'false, "requiresFSResize": false}'))
    assert not caller.expand_fs(POD, VOLUME, new_size=2, old_size=1)
    assert [argv[0] for argv in caller.calls] == ["init"]


def test_an_expandfs_that_is_not_supported_is_told(make: Any) -> None:
    with pytest.raises(FlexNotSupported):
        make("").expand_fs(POD, VOLUME, new_size=2, old_size=1)


# --- answers


def test_keys_are_read_in_any_case(make: Any) -> None:
    caller = make("", '{"STATUS": "Success", "Capabilities": {"ATTACH": false, "fsgroup": false}}')
    assert (caller.capabilities["attach"], caller.capabilities["fsGroup"]) == (False, False)


@pytest.mark.parametrize("init", ['{"status": 1}', '{"status": "Success", "capabilities": []}', '{"attached": "yes"}'])
def test_a_key_of_another_type_breaks_the_answer(make: Any, init: str) -> None:
    with pytest.raises(FlexFailure, match="cannot unmarshal"):
        make("", init).probe()


@pytest.mark.parametrize("init", ["{}", '{"status": "success"}', '{"status": "Failed"}'])
def test_any_other_status_is_a_failure(make: Any, init: str) -> None:
    with pytest.raises(FlexFailure, match="init command failed"):
        make("", init).probe()


# --- repeats


FAILS_TWICE = """mount) n=$(cat "$0.n" 2>/dev/null || echo 0); echo $((n + 1)) > "$0.n"
if [ "$n" -lt 2 ]; then echo '{"status": "Failure", "message": "later"}'; else
mount -t tmpfs tmpfs "$2" && echo '{"status": "Success"}'; fi;;"""


@pytest.mark.programs("mount")
def test_a_failed_mount_is_repeated_with_growing_waits(make: Any) -> None:
    caller = make(FAILS_TWICE, backoff=Backoff(scale=0))
    caller.mount_until(POD, VOLUME, 5)
    assert caller.backoff.waits == [0.5, 1.0]


def test_the_last_failure_is_told_when_the_tries_are_used_up(make: Any) -> None:
    caller = make(FAILS_TWICE, backoff=Backoff(scale=0))
    with pytest.raises(FlexFailure, match="later"):
        caller.mount_until(POD, VOLUME, 2)


def test_each_operation_waits_for_its_own_failures() -> None:
    backoff = Backoff()
    assert [backoff.failed("mount a") for _ in range(10)] == [0.5, 1, 2, 4, 8, 16, 32, 64, 122, 122]
    assert backoff.failed("mount b") == 0.5
    backoff.succeeded("mount a")
    assert backoff.failed("mount a") == 0.5


@pytest.mark.programs("mount")
def test_a_mount_left_behind_by_a_failure_is_success_at_the_next_try(make: Any) -> None:
    """What the driver must not do: kubelet does not call again for a directory where something is mounted."""
    caller = make(
        """mount) mount -t tmpfs tmpfs "$2"; echo '{"status": "Failure", "message": "half"}';;""",
        backoff=Backoff(scale=0),
    )
    caller.mount_until(POD, VOLUME, 2)
    assert [argv[0] for argv in caller.calls] == ["init", "mount"]


# --- older kubelets


BINDS = """mount) mount --bind "$(dirname "$0")" "$2" && echo '{"status": "Success"}';;"""


@pytest.mark.programs("mount")
@pytest.mark.parametrize(("sees", "calls"), [(True, 1), (False, 2)])
def test_a_kubelet_that_sees_no_binds_mounts_them_again(make: Any, sees: bool, calls: int) -> None:
    caller = make(BINDS, sees_binds=sees)
    for _ in range(2):
        caller.mount(POD, VOLUME)
    assert [argv[0] for argv in caller.calls].count("mount") == calls


@pytest.mark.programs("mount")
def test_old_kubelets_tell_the_device_and_the_group_in_their_own_way(make: Any) -> None:
    script = f"""{MOUNTS.replace('"$2', '"$2')}
waitforattach) echo '{{"status": "Success", "device": "tmpfs"}}';;
isattached) echo '{{"status": "Success", "attached": true}}';;"""
    caller = make(script, ATTACH, old_arguments=True)
    caller.mount(POD, FlexVolume("data", fs_type="tmpfs"), fs_group=GROUP)
    verb, _, device, options = caller.calls[-1]
    assert (verb, device) == ("mount", "tmpfs")
    assert json.loads(options)["kubernetes.io/fsGroup"] == str(GROUP)
    caller.is_attached(VOLUME)
    assert caller.calls[-1][1] == "node-1"


@pytest.mark.programs("mount")
def test_options_of_the_user_override_those_of_kubelet(make: Any) -> None:
    caller = make(MOUNTS)
    caller.mount(POD, FlexVolume("data", {"kubernetes.io/pod.name": "mallory"}))
    assert json.loads(caller.calls[-1][2])["kubernetes.io/pod.name"] == "mallory"


@pytest.mark.programs("mount")
def test_the_driver_runs_in_the_root_directory_without_input(make: Any, area: Path) -> None:
    caller = make(f"""mount) pwd > {area}/where; cat >> {area}/where; mount -t tmpfs t "$2"
echo '{{"status": "Success"}}';;""")
    caller.mount(POD, VOLUME)
    assert (area / "where").read_text() == "/\n"


def test_a_driver_that_hangs_is_waited_for_only_when_asked(make: Any) -> None:
    caller = make("mount) exec sleep 60;;", timeout=0.2)
    with pytest.raises(FlexFailure, match=r"mount did not answer within 0\.2 s"):
        caller.mount(POD, VOLUME)
    assert os.path.lexists(caller.target(POD, "data")) is False
