"""Disks that are full or read-only: what cannot be kept is an error, and nothing that was kept is lost."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need

from nodeplug import mounted_at, unmount
from nodeplug.config.last_good import NAME
from nodeplug.testing.waiting import until

Make = Callable[..., Any]


@pytest.fixture
def disk() -> Iterator[Callable[..., None]]:
    """Mount a filesystem of 2 MiB, or change its options."""
    need("mount")
    with ExitStack() as undo:

        def mount(path: Path, options: str = "size=2m,mode=700") -> None:
            path.mkdir(parents=True, exist_ok=True)
            if mounted_at(str(path)) is None:
                undo.callback(unmount, str(path), lazy=True)
                subprocess.run(["mount", "-t", "tmpfs", "-o", options, "scratch", str(path)], check=True)
            else:
                subprocess.run(["mount", "-o", f"remount,{options}", str(path)], check=True)

        yield mount


def fill(folder: Path) -> Path:
    file = folder / "filler"
    size = os.statvfs(folder)
    file.write_bytes(b"x" * size.f_bavail * size.f_frsize)
    assert os.statvfs(folder).f_bavail == 0
    return file


@pytest.fixture
def node(make_node: Make, disk: Any) -> Any:
    """A daemon whose state is on a disk of its own, with one attachment."""
    made = make_node(run=False)
    disk(made.scratch.paths.state)
    made.start()
    assert made.cni(container="kept").status == 0
    until((made.scratch.paths.state / NAME).exists)  # the last that the start itself writes
    made.mark()
    return made


def test_an_add_on_a_full_disk_is_code_11_and_says_where(node: Any) -> None:
    filler = fill(node.scratch.paths.state)
    answer = node.cni()
    assert (answer.status, answer.code) == (1, 11)
    assert f"cannot write {node.scratch.paths.journal}" in answer.text
    assert "No space left on device" in node.failure()
    filler.unlink()
    assert node.cni().status == 0


def test_a_del_on_a_full_disk_succeeds(node: Any) -> None:
    fill(node.scratch.paths.state)
    assert node.cni("DEL", container="kept").status == 0
    assert (node.notes() / "deleted").read_text() == "kept done\n"


def test_a_daemon_starts_with_a_full_disk_and_knows_what_was_kept(node: Any) -> None:
    fill(node.scratch.paths.state)
    node.scratch.kill()
    node.start()
    assert node.plugin("faulty")["state"] == "running"
    assert node.attachments() == {"kept"}
    assert node.cni("DEL", container="kept").status == 0


def test_a_del_without_daemon_on_a_full_disk_is_an_error(node: Any) -> None:
    fill(node.scratch.paths.state)
    node.scratch.stop()
    answer = node.cni("DEL", container="kept")
    assert (answer.status, answer.code) == (1, 11)
    assert "DEL cannot be kept" in answer.text
    assert list(node.scratch.paths.spool.iterdir()) == []


def test_an_add_on_a_read_only_disk_is_an_error_that_says_so(node: Any, disk: Any) -> None:
    disk(node.scratch.paths.state, "ro")
    answer = node.cni()
    assert (answer.status, answer.code) == (1, 999)
    assert "Read-only file system" in answer.text
    node.failure()
    disk(node.scratch.paths.state, "rw")
    assert node.cni().status == 0


def test_a_daemon_starts_with_a_read_only_disk_that_has_its_folders(node: Any, disk: Any) -> None:
    node.scratch.kill()
    disk(node.scratch.paths.state, "ro")
    node.start()
    assert node.plugin("faulty")["state"] == "running"
    assert node.attachments() == {"kept"}


def test_a_daemon_that_cannot_make_its_folders_ends_with_one_sentence(make_node: Make, disk: Any) -> None:
    node = make_node(run=False)
    disk(node.scratch.paths.state)
    disk(node.scratch.paths.state, "ro")
    done = node.scratch.run("serve")
    assert done.returncode == 1
    assert "Read-only file system" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_journal_file_on_a_read_only_disk_counts_as_none(node: Any, disk: Any) -> None:
    record = node.scratch.paths.journal / "faulty" / "kept.json"
    record.write_bytes(record.read_bytes()[:20])
    disk(node.scratch.paths.state, "ro")
    assert node.cni("DEL", container="kept").status == 0
    assert (node.notes() / "deleted").read_text() == "kept unknown\n"


def test_a_del_on_a_read_only_disk_succeeds_and_its_record_goes_later(node: Any, disk: Any) -> None:
    record = node.scratch.paths.journal / "faulty" / "kept.json"
    disk(node.scratch.paths.state, "ro")
    assert node.cni("DEL", container="kept").status == 0
    assert node.cni("DEL", container="kept").status == 0
    assert (node.notes() / "deleted").read_text() == "kept done\nkept unknown\n"
    assert sum(f"cannot remove {record}" in line for line in node.fresh) == 1
    disk(node.scratch.paths.state, "rw")
    node.until(lambda: not record.exists())


def test_an_add_after_such_a_del_keeps_its_new_record(node: Any, disk: Any) -> None:
    disk(node.scratch.paths.state, "ro")
    assert node.cni("DEL", container="kept").status == 0
    disk(node.scratch.paths.state, "rw")
    assert node.cni(container="kept").status == 0
    node.until(lambda: "can be written again" in node.scratch.log or node.scratch.status()["ready"])
    assert node.cni("DEL", container="kept").status == 0
    assert (node.notes() / "deleted").read_text() == "kept done\nkept done\n"


@pytest.mark.whole
@pytest.mark.parametrize("state", ["read-only", "full"])
def test_a_state_folder_that_cannot_be_written_is_a_reason_of_the_daemon(node: Any, disk: Any, state: str) -> None:
    if state == "full":
        fill(node.scratch.paths.state)
    else:
        disk(node.scratch.paths.state, "ro")
    node.until(lambda: "state folder" in node.scratch.status()["reasons"])
    reason = node.scratch.status()["reasons"]["state folder"]
    assert f"the state folder {node.scratch.paths.state} cannot be written" in reason
    assert sum("cannot be written" in line for line in node.fresh) == 1
    if state == "full":
        (node.scratch.paths.state / "filler").unlink()
    else:
        disk(node.scratch.paths.state, "rw")
    node.until(lambda: node.scratch.status()["ready"])


@pytest.fixture
def pod(make_node: Make, disk: Any) -> Iterator[Any]:
    """A daemon whose state is on a disk of its own, with a volume mounted for a pod."""
    node = make_node(run=False, drive={"kind": "volume"})
    disk(node.scratch.paths.state)
    node.start()
    target = node.scratch.root / "pods/uid/volumes/scratch~drive/data"
    target.mkdir(parents=True)
    options = '{"kubernetes.io/pvOrVolumeName": "data", "kubernetes.io/readwrite": "rw"}'
    assert node.flex("mount", str(target), options).document["status"] == "Success"
    yield node, target
    for mount in (target, *(node.scratch.paths.run / "staging").glob("*/*")):
        unmount(str(mount), lazy=True)


@pytest.mark.parametrize("state", ["read-only", "full"])
def test_a_pod_ends_while_its_state_folder_cannot_be_written(pod: Any, disk: Any, state: str) -> None:
    node, target = pod
    if state == "full":
        fill(node.scratch.paths.state)
    else:
        disk(node.scratch.paths.state, "ro")
    for _ in range(2):  # kubelet may repeat it
        assert node.flex("unmount", str(target)).document["status"] == "Success"
    assert mounted_at(str(target)) is None
    assert node.scratch.status()["volumes"] == []


@pytest.mark.whole
def test_the_records_of_a_pod_that_ended_on_a_read_only_disk_go_when_it_is_writable(pod: Any, disk: Any) -> None:
    node, target = pod
    records = node.scratch.paths.journal / "flexvolume"
    disk(node.scratch.paths.state, "ro")
    assert node.flex("unmount", str(target)).document["status"] == "Success"
    assert list(records.glob("*.json"))
    disk(node.scratch.paths.state, "rw")
    node.until(lambda: not list(records.glob("*.json")))


def test_a_daemon_that_is_restarted_meanwhile_takes_such_a_record_for_what_the_kernel_says(pod: Any, disk: Any) -> None:
    node, target = pod
    disk(node.scratch.paths.state, "ro")
    assert node.flex("unmount", str(target)).document["status"] == "Success"
    node.scratch.kill()
    node.start()
    assert node.flex("unmount", str(target)).document["status"] == "Success"
    disk(node.scratch.paths.state, "rw")
    node.until(lambda: node.scratch.status()["volumes"] == [])


def test_a_full_run_folder_fails_no_call(make_node: Make, disk: Any) -> None:
    node = make_node(run=False)
    disk(node.scratch.paths.run)
    node.start()
    fill(node.scratch.paths.run)
    node.mark()
    assert node.cni().status == 0
    assert sum("cannot record attachment" in line for line in node.fresh) == 1
