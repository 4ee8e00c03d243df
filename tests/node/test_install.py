"""Installation on real folders; files are made as root, whatever the umask."""

import json
import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeplug import PluginError, mount, unmount
from nodeplug.errors import InvalidRequest
from nodeplug.install.drivers import reprobe
from nodeplug.install.files import install, uninstall
from nodeplug.install.ownership import Folders, ForeignFile
from nodeplug.install.report import Report
from nodeplug.install.scripts import MARKER, Scripts

pytestmark = pytest.mark.unprivileged

ANSWER = b'{"status":"Success","capabilities":{"attach":false}}'
CONFLIST = b'{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"nodeplug-bridge"}]}'


def scripts(text: str = "one") -> Scripts:
    body = b"#!/bin/sh\n" + MARKER + f"\necho {text} # {text * 4000}\n".encode()
    return Scripts(body, body)


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path / "opt/cni/bin", tmp_path / "etc/cni/net.d", tmp_path / "kubelet/exec")


def run(
    folders: Folders,
    *,
    cni: tuple[str, ...] = ("nodeplug-bridge", "nodeplug-loopback"),
    drivers: tuple[str, ...] = ("nodeplug/loopfile",),
    text: str = "one",
    conflists: dict[str, bytes] | None = None,
    prune: bool = True,
    in_use: tuple[str, ...] = (),
) -> Report:
    return install(
        cni=cni,
        drivers=dict.fromkeys(drivers, ANSWER),
        folders=folders,
        scripts=scripts(text),
        conflists=conflists,
        prune=prune,
        in_use=in_use,
    )


def everything(root: Path) -> dict[str, tuple[int, int]]:
    """Return inode and change time of each path: what is equal here has seen no event."""
    return {
        str(path): (path.lstat().st_ino, path.lstat().st_ctime_ns) for path in [root, *root.rglob("*")] if path != root
    }


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_each_cni_claim_becomes_a_file_of_its_own(folders: Folders) -> None:
    run(folders)
    assert names(folders.cni_bin) == ["nodeplug-bridge", "nodeplug-loopback"]
    for path in folders.cni_bin.iterdir():
        status = path.lstat()
        assert (stat.S_IFMT(status.st_mode), status.st_mode & 0o777, status.st_nlink) == (stat.S_IFREG, 0o755, 1)


def test_who_copies_over_one_name_does_not_write_through_to_the_others(folders: Folders, tmp_path: Path) -> None:
    run(folders)
    foreign = tmp_path / "loopback"
    foreign.write_text("#!/bin/sh\necho foreign\n")
    foreign.chmod(0o755)
    subprocess.run(["cp", foreign, folders.cni_bin / "nodeplug-loopback"], check=True)
    told = [
        subprocess.run([folders.cni_bin / f"nodeplug-{name}"], capture_output=True, text=True, check=True).stdout
        for name in ("bridge", "loopback")
    ]
    assert told == ["one\n", "foreign\n"]


def linked(folders: Folders) -> None:
    """Install as older versions did: one script, and a symlink to it for each claim."""
    folders.cni_bin.mkdir(parents=True)
    (folders.cni_bin / "nodeplug-cni").write_bytes(scripts().cni)
    (folders.cni_bin / "nodeplug-cni").chmod(0o755)
    for name in ("nodeplug-bridge", "nodeplug-loopback", "nodeplug-gone"):
        (folders.cni_bin / name).symlink_to("nodeplug-cni")


def test_symlinks_of_an_older_version_become_files_and_their_script_goes(folders: Folders) -> None:
    linked(folders)
    report = run(folders)
    assert names(folders.cni_bin) == ["nodeplug-bridge", "nodeplug-loopback"]
    assert not any(path.is_symlink() for path in folders.cni_bin.iterdir())
    assert [len(paths) for paths in (report.created, report.updated, report.removed)] == [1, 2, 2]


def test_an_upgrade_that_was_killed_half_way_is_finished_by_the_next(folders: Folders) -> None:
    linked(folders)
    (folders.cni_bin / "nodeplug-bridge").unlink()
    (folders.cni_bin / "nodeplug-bridge").write_bytes(scripts().cni)
    (folders.cni_bin / "nodeplug-cni").unlink()  # the other names lead nowhere
    run(folders)
    assert names(folders.cni_bin) == ["nodeplug-bridge", "nodeplug-loopback"]
    assert subprocess.run([folders.cni_bin / "nodeplug-loopback"], check=False).returncode == 0


def test_what_an_older_version_installed_is_removed_by_uninstall(folders: Folders) -> None:
    linked(folders)
    uninstall(folders=folders)
    assert names(folders.cni_bin) == []


def test_no_call_fails_while_symlinks_become_files(folders: Folders) -> None:
    ended = threading.Event()
    failed: list[str] = []
    linked(folders)

    def call() -> None:
        while not ended.is_set():
            done = subprocess.run([folders.cni_bin / "nodeplug-bridge"], capture_output=True, text=True, check=False)
            if done.stdout != "one\n":
                failed.append(f"{done}")

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        run(folders)
        for name in ("nodeplug-cni", "nodeplug-bridge"):
            temporary = folders.cni_bin / "temporary"
            if name == "nodeplug-cni":
                temporary.write_bytes(scripts().cni)
                temporary.chmod(0o755)
            else:
                temporary.symlink_to("nodeplug-cni")
            temporary.rename(folders.cni_bin / name)
    ended.set()
    for thread in threads:
        thread.join()
    assert failed == []


def test_installed_names_can_be_executed(folders: Folders) -> None:
    run(folders)
    for path in (folders.cni_bin / "nodeplug-bridge", folders.flex / "nodeplug~loopfile/loopfile"):
        assert subprocess.run([path], capture_output=True, text=True, check=True).stdout == "one\n"


def test_each_driver_becomes_a_folder_with_executable_and_answer(folders: Folders) -> None:
    run(folders)
    assert names(folders.flex / "nodeplug~loopfile") == ["capabilities.json", "loopfile"]
    assert (folders.flex / "nodeplug~loopfile/capabilities.json").read_bytes() == ANSWER


def test_driver_without_a_vendor_lives_in_a_folder_of_its_name(folders: Folders) -> None:
    run(folders, drivers=("loopfile",))
    assert (folders.flex / "loopfile/loopfile").is_file()


def test_modes_do_not_depend_on_the_umask(folders: Folders) -> None:
    before = os.umask(0o077)
    try:
        run(folders)
    finally:
        os.umask(before)
    assert (folders.flex / "nodeplug~loopfile").stat().st_mode & 0o777 == 0o755
    assert (folders.flex / "nodeplug~loopfile/capabilities.json").stat().st_mode & 0o777 == 0o644
    assert (folders.cni_bin / "nodeplug-bridge").stat().st_mode & 0o777 == 0o755


def test_second_installation_touches_nothing(folders: Folders, tmp_path: Path) -> None:
    first = run(folders, conflists={"10-pods.conflist": CONFLIST})
    before = everything(tmp_path)
    second = run(folders, conflists={"10-pods.conflist": CONFLIST})
    assert everything(tmp_path) == before
    assert (first.changed, second.changed) == (True, False)
    assert len(second.unchanged) == 5


def test_new_script_replaces_the_files(folders: Folders) -> None:
    run(folders)
    report = run(folders, text="two")
    assert sorted(map(os.path.basename, report.updated)) == ["loopfile", "nodeplug-bridge", "nodeplug-loopback"]
    assert (folders.flex / "nodeplug~loopfile/loopfile").read_bytes() == scripts("two").flex
    assert names(folders.flex / "nodeplug~loopfile") == ["capabilities.json", "loopfile"]


def test_nothing_temporary_is_left_anywhere(folders: Folders, tmp_path: Path) -> None:
    run(folders)
    run(folders, text="two", conflists={"10-pods.conflist": CONFLIST})
    assert [path for path in tmp_path.rglob("*") if path.name.startswith(".")] == []


def test_claim_that_is_gone_loses_its_names(folders: Folders) -> None:
    run(folders, drivers=("nodeplug/loopfile", "nodeplug/tmpfs"))
    report = run(folders, cni=("nodeplug-bridge",), drivers=("nodeplug/tmpfs",))
    assert sorted(map(os.path.basename, report.removed)) == ["nodeplug-loopback", "nodeplug~loopfile"]
    assert names(folders.flex) == ["nodeplug~tmpfs"]


def test_without_prune_a_claim_that_is_gone_keeps_its_names(folders: Folders) -> None:
    run(folders)
    assert run(folders, cni=(), drivers=(), prune=False).removed == ()
    assert (folders.cni_bin / "nodeplug-bridge").exists()


def test_driver_with_mounted_volumes_is_kept(folders: Folders) -> None:
    run(folders)
    report = run(folders, drivers=(), in_use=("nodeplug/loopfile",))
    assert "still mounted" in report.kept[0]
    assert (folders.flex / "nodeplug~loopfile/loopfile").is_file()


def test_without_cni_claims_nothing_of_ours_stays(folders: Folders) -> None:
    run(folders)
    run(folders, cni=())
    assert names(folders.cni_bin) == []


@pytest.mark.parametrize("name", ["nodeplug-loopback", "nodeplug-bridge"])
def test_foreign_file_in_the_binary_folder_is_refused_by_name(folders: Folders, name: str, tmp_path: Path) -> None:
    folders.cni_bin.mkdir(parents=True)
    (folders.cni_bin / name).write_bytes(b"somebody else's")
    before = everything(tmp_path)
    with pytest.raises(ForeignFile, match=f"{folders.cni_bin}/{name}; move"):
        run(folders)
    assert everything(tmp_path) == before


def test_foreign_symlink_is_refused(folders: Folders) -> None:
    folders.cni_bin.mkdir(parents=True)
    (folders.cni_bin / "nodeplug-bridge").symlink_to("bridge")
    with pytest.raises(ForeignFile, match="nodeplug-bridge"):
        run(folders)


def test_foreign_driver_is_refused(folders: Folders) -> None:
    (folders.flex / "nodeplug~loopfile").mkdir(parents=True)
    (folders.flex / "nodeplug~loopfile/loopfile").write_text("#!/bin/sh\n")
    with pytest.raises(ForeignFile, match="nodeplug~loopfile/loopfile"):
        run(folders)


def test_folder_with_foreign_files_in_the_place_of_a_driver_is_refused(folders: Folders) -> None:
    (folders.flex / "nodeplug~loopfile").mkdir(parents=True)
    (folders.flex / "nodeplug~loopfile/notes").touch()
    with pytest.raises(ForeignFile, match="nodeplug~loopfile/notes"):
        run(folders)


def test_foreign_conflist_is_refused(folders: Folders) -> None:
    folders.cni_conf.mkdir(parents=True)
    (folders.cni_conf / "10-pods.conflist").write_bytes(CONFLIST)
    with pytest.raises(ForeignFile, match=r"10-pods\.conflist"):
        run(folders, conflists={"10-pods.conflist": CONFLIST})


def test_all_foreign_names_are_told_at_once(folders: Folders) -> None:
    folders.cni_bin.mkdir(parents=True)
    (folders.cni_bin / "nodeplug-bridge").touch()
    (folders.cni_bin / "nodeplug-loopback").touch()
    with pytest.raises(ForeignFile, match=r"nodeplug-bridge, .*nodeplug-loopback"):
        run(folders)


def test_claim_cannot_take_the_name_of_the_script(folders: Folders) -> None:
    with pytest.raises(InvalidRequest, match="nodeplug-cni"):
        run(folders, cni=("nodeplug-cni",))


@pytest.mark.parametrize("data", [b"", b"[]", b'{"name":"pods"', b'{"name":"pods","plugins":[]}', b'{"plugins":[{}]}'])
def test_broken_conflist_is_refused_before_anything_is_written(folders: Folders, data: bytes, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="network configuration list"):
        run(folders, conflists={"10-pods.conflist": data})
    assert everything(tmp_path) == {}


@pytest.mark.parametrize("name", ["pods.conf", "../pods.conflist", ".pods.conflist"])
def test_conflist_name_that_no_runtime_reads_is_refused(folders: Folders, name: str) -> None:
    with pytest.raises(InvalidRequest, match="no name for a network configuration"):
        run(folders, conflists={name: CONFLIST})


def test_conflist_keeps_its_content_and_gains_the_mark(folders: Folders) -> None:
    run(folders, conflists={"10-pods.conflist": CONFLIST})
    document = json.loads((folders.cni_conf / "10-pods.conflist").read_bytes())
    assert document == {**json.loads(CONFLIST), "installedBy": "nodeplug"}


def test_half_removed_driver_is_completed_by_the_next_installation(folders: Folders) -> None:
    run(folders)
    (folders.flex / "nodeplug~loopfile/loopfile").unlink()
    run(folders)
    assert (folders.flex / "nodeplug~loopfile/loopfile").is_file()


def test_half_removed_driver_is_removed_by_uninstall(folders: Folders) -> None:
    run(folders)
    (folders.flex / "nodeplug~loopfile/loopfile").unlink()
    uninstall(folders=folders)
    assert names(folders.flex) == []


def test_leftovers_of_a_killed_installation_are_swept(folders: Folders) -> None:
    run(folders)
    old = folders.cni_bin / ".nodeplug-000000.tmp"
    young = folders.cni_bin / ".nodeplug-111111.tmp"
    staging = folders.flex.parent / ".nodeplug-222222.tmp"
    old.touch()
    young.touch()
    staging.mkdir()
    (staging / "loopfile").touch()
    for path in (old, staging):
        os.utime(path, (1, 1))
    run(folders)
    assert (old.exists(), young.exists(), staging.exists()) == (False, True, False)


def test_uninstall_removes_all_that_is_ours(folders: Folders) -> None:
    run(folders, conflists={"10-pods.conflist": CONFLIST})
    report = uninstall(folders=folders)
    assert len(report.removed) == 4
    assert [names(folder) for folder in (folders.cni_bin, folders.cni_conf, folders.flex)] == [[], [], []]


def test_uninstall_leaves_foreign_files(folders: Folders) -> None:
    run(folders)
    (folders.cni_bin / "bridge").touch()
    (folders.cni_bin / "nodeplug-old").symlink_to("bridge")
    (folders.cni_conf).mkdir(parents=True)
    (folders.cni_conf / "10-pods.conflist").write_bytes(CONFLIST)
    (folders.flex / "other~driver").mkdir()
    (folders.flex / "other~driver/driver").touch()
    (folders.flex / "third~driver").mkdir()
    (folders.flex / "third~driver/capabilities.json").write_text("{}")
    uninstall(folders=folders)
    assert names(folders.cni_bin) == ["bridge", "nodeplug-old"]
    assert names(folders.cni_conf) == ["10-pods.conflist"]
    assert names(folders.flex) == ["other~driver", "third~driver"]


def test_uninstall_keeps_a_driver_folder_with_foreign_files_and_says_so(folders: Folders) -> None:
    run(folders)
    (folders.flex / "nodeplug~loopfile/notes").touch()
    report = uninstall(folders=folders)
    assert "nodeplug did not make" in report.kept[0]
    assert names(folders.flex / "nodeplug~loopfile") == ["notes"]


def test_uninstall_of_nothing_succeeds(folders: Folders) -> None:
    assert uninstall(folders=folders) == Report()


@pytest.mark.node
def test_plugin_folder_on_a_filesystem_of_its_own_still_gets_whole_drivers(folders: Folders) -> None:
    folders.flex.mkdir(parents=True)
    mount("none", str(folders.flex), "tmpfs")
    try:
        report = run(folders)
        assert str(folders.flex / "nodeplug~loopfile") in report.created
        assert names(folders.flex) == ["nodeplug~loopfile"]
        assert names(folders.flex.parent) == ["exec"]
    finally:
        unmount(str(folders.flex))


@pytest.mark.node
def test_full_filesystem_is_told_and_leaves_no_half_driver(folders: Folders) -> None:
    folders.flex.mkdir(parents=True)
    mount("none", str(folders.flex), "tmpfs", options=("size=4k",))
    try:
        with pytest.raises(PluginError, match="No space left"):
            run(folders, text="long" * 10)
        assert names(folders.flex) == []
    finally:
        unmount(str(folders.flex))


def test_file_in_the_place_of_a_folder_is_told(folders: Folders) -> None:
    folders.cni_bin.parent.mkdir(parents=True)
    folders.cni_bin.touch()
    with pytest.raises(PluginError, match=f"cannot install {folders.cni_bin}"):
        run(folders)


@pytest.fixture
def repeating(folders: Folders) -> Iterator[Folders]:
    """Install in turns with two texts, in a thread, until the test ends."""
    run(folders)
    stop = threading.Event()

    def repeat() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            run(folders, text=("one", "two")[turn % 2])

    thread = threading.Thread(target=repeat)
    thread.start()
    yield folders
    stop.set()
    thread.join()


def test_concurrent_reader_never_sees_a_missing_or_half_script(repeating: Folders) -> None:
    paths = [repeating.cni_bin / "nodeplug-bridge", repeating.flex / "nodeplug~loopfile/loopfile"]
    whole = {scripts("one").cni, scripts("two").cni}
    seen = [path.read_bytes() for _ in range(2000) for path in paths]
    assert set(seen) == whole


def test_concurrent_reader_never_sees_a_driver_folder_without_its_files(folders: Folders) -> None:
    partial = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            for folder in folders.flex.glob("[!.]*"):
                found = names(folder)
                if found != ["capabilities.json", "driver"]:
                    partial.append(found)

    folders.flex.mkdir(parents=True)
    thread = threading.Thread(target=look)
    thread.start()
    for number in range(200):
        run(folders, cni=(), drivers=(f"vendor{number}/driver",), prune=False)
    stop.set()
    thread.join()
    assert partial == []


def test_two_installations_at_once_end_complete(folders: Folders) -> None:
    errors: list[Exception] = []

    def work() -> None:
        try:
            run(folders, cni=())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert names(folders.flex / "nodeplug~loopfile") == ["capabilities.json", "loopfile"]


def test_reprobe_touches_our_executables_alone(folders: Folders) -> None:
    run(folders)
    script = folders.flex / "nodeplug~loopfile/loopfile"
    os.utime(script, (1, 1))
    (folders.flex / "other~driver").mkdir()
    (folders.flex / "other~driver/driver").touch()
    os.utime(folders.flex / "other~driver/driver", (1, 1))
    reprobe(folders.flex, ["nodeplug/loopfile", "nodeplug/absent", "other/driver"])
    assert script.stat().st_mtime > 1
    assert (folders.flex / "other~driver/driver").stat().st_mtime == 1
    assert names(folders.flex) == ["nodeplug~loopfile", "other~driver"]


def test_a_program_that_comes_while_others_are_installed_is_refused_and_stays(folders: Folders) -> None:
    many = tuple(f"nodeplug-{number:03}" for number in range(200))
    run(folders, cni=(*many, "loopback"))
    first, last = folders.cni_bin / many[0], folders.cni_bin / "loopback"
    written = first.read_bytes()

    def replace() -> None:
        while first.read_bytes() == written:
            pass
        (folders.cni_bin / "foreign").write_text("#!/bin/true\n")
        (folders.cni_bin / "foreign").rename(last)

    other = threading.Thread(target=replace)
    other.start()
    with pytest.raises(ForeignFile, match="loopback was made by somebody else meanwhile"):
        run(folders, cni=(*many, "loopback"), text="two")
    other.join()
    assert last.read_text() == "#!/bin/true\n"
