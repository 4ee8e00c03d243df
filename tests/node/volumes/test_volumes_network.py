"""nfs and smb through the FlexVolume front, without their protocols: real programs stand in for mount(8) and servers.

What `mount` mounts here is FUSE: a program that is stopped is a server that does not answer any more. Kernels with NFS
or SMB are found in few places; see docs/plugins/network.md for what is tested where.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fuse_programs import programs
from tests.programs import need

from nodeplug import NotReady, VolumeId, VolumeStats, VolumeStatsRequest, mounted_at, mounts
from nodeplug.testing.waiting import until
from nodeplug_volumes.network import mounting
from nodeplug_volumes.network.nfs import Nfs, NfsConfig
from nodeplug_volumes.network.smb import Smb, SmbConfig

pytestmark = pytest.mark.node
NFS, SMB = "nodeplug/nfs", "nodeplug/smb"
EXPORT = {"server": "files.example.com", "path": "/srv/data"}
SHARE = {"server": "files.example.com", "share": "data/models"}
SECRET = "kubernetes.io/secret/"
PATIENCE = 30
SERVES = """#!/bin/sh
echo "$@" > {log}
for word in $(echo "$*" | tr ', ' '\\n\\n'); do
    file=${{word#credentials=}}
    [ "$file" = "$word" ] || {{ cat "$file" > {log}.credentials; stat -c %a "$file" > {log}.mode; }}
done
for last; do :; done
exec bindfs {source} "$last"
"""
HANGS = """#!/bin/sh
trap '' TERM INT HUP
echo $$ > {log}
while :; do sleep 1000; done
"""
FAILS = """#!/bin/sh
echo "mount.nfs: access denied by server while mounting $5" >&2
exit 32
"""
MOUNTS_AND_HANGS = """#!/bin/sh
for last; do :; done
bindfs {source} "$last"
sleep 1000
"""


@pytest.fixture
def source(has_fuse: None) -> Iterator[Path]:
    need("bindfs")
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    (folder / "hello").write_text("world")
    yield folder
    for pid in programs(folder):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder)


@pytest.fixture
def program(area: Path, source: Path) -> Callable[[str], str]:
    """Make what stands in for mount(8); return its path."""

    def make(text: str) -> str:
        path = area / f"mount-{len(list(area.glob('mount-*')))}"
        path.write_text(text.format(log=area / "log", source=source))
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def make(make_node: Any, make_host: Any) -> Any:
    def build(mount_program: str, **config: Any) -> Any:
        common = {"servers": ["*.example.com", "10.0.0.*"], "mount_program": mount_program} | config
        nfs = Nfs(NfsConfig.model_validate(common), make_host("nfs"))
        smb = Smb(SmbConfig.model_validate(common), make_host("smb"))
        for plugin in (nfs, smb):
            plugin.start()
        return make_node(nfs=nfs, smb=smb)

    return build


@pytest.fixture
def node(make: Any, program: Any) -> Any:
    return make(program(SERVES))


@pytest.fixture
def target(node: Any) -> Path:
    path: Path = node.target("a")
    return path


def test_pods_share_one_mount_of_an_export_and_the_last_one_ends_it(node: Any, source: Path, area: Path) -> None:
    one, two = node.target("a"), node.target("b")
    assert node.mount(NFS, one, EXPORT | {"mountOptions": "vers=4.1,nconnect=4"}) == {"status": "Success"}
    assert node.mount(NFS, two, EXPORT | {"mountOptions": "vers=4.1,nconnect=4"}) == {"status": "Success"}
    staged = [one.target for one in mounts() if one.target.startswith(str(area / "staging"))]
    words = (area / "log").read_text().split()
    assert words == ["-t", "nfs", "-o", "vers=4.1,nconnect=4,nosuid,nodev", "files.example.com:/srv/data", *staged]
    (one / "new").write_text("written")
    assert (two / "new").read_text() == "written"
    node.unmount(NFS, one)
    assert (two / "hello").read_text() == "world"
    node.unmount(NFS, two)
    assert (node.mounted, node.records) == ([], [])
    until(lambda: programs(source) == [], PATIENCE)


def test_a_pod_that_may_only_read_cannot_write(node: Any, target: Path) -> None:
    node.mount(NFS, target, EXPORT | {"kubernetes.io/readwrite": "ro"})
    with pytest.raises(OSError, match="Read-only file system"):
        (target / "new").write_text("")
    found = mounted_at(str(target))
    assert found is not None
    assert {"nosuid", "nodev"} <= set(found.options)


def test_credentials_are_in_a_file_that_is_gone_after_the_mount_and_never_in_an_argument(
    node: Any, target: Path, area: Path
) -> None:
    given = {"username": b"me", "password": b"geheim,4711 x", "domain": b"WORK"}
    secrets = {f"{SECRET}{name}": b64encode(value).decode() for name, value in given.items()}
    assert node.mount(SMB, target, SHARE | secrets | {"mountOptions": "vers=3.1.1,seal"}) == {"status": "Success"}
    words = (area / "log").read_text().split()
    assert words[:2] == ["-t", "cifs"]
    assert words[3].startswith("vers=3.1.1,seal,nosuid,nodev,credentials=")
    assert words[4] == "//files.example.com/data/models"
    assert "geheim" not in (area / "log").read_text()
    assert (area / "log.credentials").read_text() == "username=me\npassword=geheim,4711 x\ndomain=WORK\n"
    assert (area / "log.mode").read_text() == "600\n"
    (area / "log.credentials").unlink()
    assert [path for path in node.mounted if "credentials" in path] == []
    files = [
        path for path in area.rglob("*") if path.is_file() and "pods" not in path.parts and "staging" not in path.parts
    ]
    assert [path for path in files if b"geheim" in path.read_bytes()] == []


# --- programs and servers that do not answer


def test_a_mount_program_that_never_returns_is_killed_and_holds_no_other_volume(
    make: Any, program: Any, area: Path
) -> None:
    node = make(program(HANGS), mount_timeout="3s")
    answer = node.mount(NFS, node.target("a"), EXPORT)
    assert "did not end within 3 s and was killed" in answer["message"]
    assert not Path(f"/proc/{(area / 'log').read_text().strip()}").exists()
    assert (node.mounted, node.records) == ([], [])
    healthy = make(program(SERVES))
    assert healthy.mount(NFS, healthy.target("b"), EXPORT) == {"status": "Success"}


def test_a_mount_that_is_made_by_a_program_that_then_hangs_does_not_stay(make: Any, program: Any, source: Path) -> None:
    node = make(program(MOUNTS_AND_HANGS), mount_timeout="3s")
    assert "did not end within 3 s" in node.mount(NFS, node.target("a"), EXPORT)["message"]
    assert (node.mounted, node.records) == ([], [])
    until(lambda: programs(source) == [], PATIENCE)


def test_what_the_mount_program_says_is_the_text_of_the_failure(make: Any, program: Any) -> None:
    node = make(program(FAILS))
    answer = node.mount(NFS, node.target("a"), EXPORT)
    assert "failed with status 32: mount.nfs: access denied by server while mounting" in answer["message"]
    assert node.mounted == []


def test_a_mount_program_that_is_missing_is_told(make: Any) -> None:
    node = make("no-such-mount")
    assert "no-such-mount cannot be executed" in node.mount(NFS, node.target("a"), EXPORT)["message"]
    with pytest.raises(NotReady, match="no-such-mount is missing on this node"):
        node.plugins["nfs"].health()


@pytest.fixture
def hung(node: Any, target: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The server of a mounted volume, which has stopped."""
    monkeypatch.setattr(mounting, "LOOK_TIMEOUT", 1.0)
    assert node.mount(NFS, target, EXPORT) == {"status": "Success"}
    (pid,) = programs(source)
    os.kill(pid, signal.SIGSTOP)
    return pid


def stats(node: Any, target: Path) -> VolumeStats:
    found: VolumeStats = node.plugins["nfs"].volume_stats(
        VolumeStatsRequest(driver=NFS, volume_id=VolumeId("x"), mount_path=str(target))
    )
    return found


def test_a_server_that_does_not_answer_is_told_to_new_pods_and_in_the_condition(
    node: Any, target: Path, hung: int
) -> None:
    assert stats(node, target).condition == "its server does not answer"
    assert "its server does not answer; see the server" in node.mount(NFS, node.target("b"), EXPORT)["message"]
    assert [path for path in node.mounted if path.endswith("/b")] == []
    os.kill(hung, signal.SIGCONT)
    until(lambda: stats(node, target).condition == "", PATIENCE)
    assert stats(node, target).total > 0
    assert node.mount(NFS, node.target("b"), EXPORT) == {"status": "Success"}


@pytest.mark.usefixtures("hung")
def test_a_pod_ends_although_its_server_does_not_answer_and_others_work_on(
    node: Any, target: Path, source: Path
) -> None:
    other = node.target("b")
    assert node.mount(NFS, other, EXPORT | {"path": "/srv/other"}) == {"status": "Success"}
    reader = subprocess.Popen(["cat", target / "hello"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert node.unmount(NFS, target) == {"status": "Success"}
    assert not target.is_mount()
    assert (other / "hello").read_text() == "world"
    assert reader.wait(PATIENCE) != 0
    assert node.unmount(NFS, other) == {"status": "Success"}
    assert (node.mounted, node.records) == ([], [])


@pytest.mark.usefixtures("target")
def test_an_unmount_during_an_outage_spoils_no_other_mount_of_the_same_export(node: Any, hung: int, area: Path) -> None:
    """The kernel gives them one superblock, as it does with a bind."""
    other = area / "other"
    other.mkdir()
    (staged,) = [one.target for one in mounts() if one.target.startswith(str(area / "staging"))]
    mounting.bind(staged, str(other), read_only=False)
    mounting.detach(staged, last=True)
    assert mounted_at(staged) is None
    os.kill(hung, signal.SIGCONT)
    assert (other / "hello").read_text() == "world"


def test_a_server_that_has_died_lets_its_pods_end(node: Any, target: Path, source: Path) -> None:
    node.mount(NFS, target, EXPORT)
    (pid,) = programs(source)
    os.kill(pid, signal.SIGKILL)
    reasons = ("Transport endpoint is not connected", "Software caused connection abort")  # while it goes
    assert stats(node, target).condition in {f"it cannot be read: {reason}" for reason in reasons}
    assert node.unmount(NFS, target) == {"status": "Success"}
    assert (node.mounted, node.records) == ([], [])


def test_a_pod_that_uses_its_volume_keeps_it_while_the_server_answers(node: Any, target: Path) -> None:
    node.mount(NFS, target, EXPORT)
    with (target / "hello").open():
        assert "it is in use" in node.unmount(NFS, target)["message"]
    assert node.unmount(NFS, target) == {"status": "Success"}


# --- what is refused


@pytest.mark.parametrize(
    ("driver", "options", "message"),
    [
        (NFS, EXPORT | {"server": "evil.example.org"}, "this node allows: *.example.com, 10.0.0.*"),
        (NFS, EXPORT | {"server": "-o.example.com"}, "must be a name or an address"),
        (NFS, EXPORT | {"server": "a b.example.com"}, "must be a name or an address"),
        (NFS, EXPORT | {"path": "srv"}, "must be absolute"),
        (NFS, EXPORT | {"path": "/a/../b"}, "without '..'"),
        (NFS, EXPORT | {"path": "/a\nb"}, "must be absolute"),
        (NFS, {"path": "/a"}, "option server is ''"),
        (NFS, EXPORT | {"fsc": "x"}, "nfs has no option 'fsc'; it has server, path, mountOptions"),
        (NFS, EXPORT | {"mountOptions": "vers=4.1,bg"}, "mount option 'bg' is not one that volumes may have"),
        (NFS, EXPORT | {"mountOptions": "vers=2"}, "mount option vers has a value that is not allowed"),
        (NFS, EXPORT | {"mountOptions": "hard=1"}, "write hard alone"),
        (NFS, EXPORT | {"mountOptions": "suid"}, "mount option 'suid' is not one"),
        (NFS, EXPORT | {f"{SECRET}a": "eA=="}, "nfs takes no Secret"),
        (SMB, SHARE | {"share": "a/../b"}, "without '..'"),
        (SMB, SHARE | {"share": "a,credentials=/etc/shadow"}, "must be a share"),
        (SMB, SHARE | {"mountOptions": "credentials=/etc/shadow"}, "mount option 'credentials' is not one"),
        (SMB, SHARE | {"mountOptions": "password=x"}, "mount option 'password' is not one"),
        (SMB, SHARE | {f"{SECRET}token": "eA=="}, "it takes: username, password, domain"),
        (SMB, SHARE | {f"{SECRET}password": "YQpi"}, "secret password has a line break"),
    ],
)
def test_what_is_not_allowed_is_refused_before_anything_is_executed(
    node: Any, area: Path, driver: str, options: dict[str, str], message: str
) -> None:
    assert message in node.mount(driver, node.target("a"), options)["message"]
    assert not (area / "log").exists()
    assert node.mounted == []


@pytest.mark.programs("mount")
def test_a_kernel_or_node_without_the_protocol_says_so(make: Any) -> None:
    node = make("mount")
    if "nfs" in Path("/proc/filesystems").read_text().split():
        pytest.skip("needs a kernel without NFS")
    answer = node.mount(NFS, node.target("a"), EXPORT | {"server": "10.0.0.1"})
    assert "mount failed with status" in answer["message"]
    assert node.mounted == []
