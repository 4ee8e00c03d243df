"""Which mounts fstab names, and the kernel has not."""

from pathlib import Path

import pytest

from nodeplug_volumes.fstab import missing_mount

LINES = [
    "/dev/vdb {place} ext4 defaults 0 2",
    "UUID=0b0b\t{place}/\tauto\tnofail",
    "  server:/export {place} nfs",
    "# a comment\n\n/dev/vda1 / ext4 defaults 0 1\n/dev/vdb {place} xfs noauto 0 0\n",
]
NO_LINES = [
    "",
    "# /dev/vdb {place} ext4 defaults 0 2",
    "/dev/vda1 / ext4 defaults 0 1",
    "/dev/vdb {place}/below ext4 defaults 0 2",
    "/dev/vdb {place}er ext4 defaults 0 2",
    "/swap none swap sw 0 0",
    "/dev/vdb",
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LIBMOUNT_FSTAB", str(tmp_path / "fstab"))
    return (tmp_path / "disk").resolve()


@pytest.mark.parametrize("line", LINES)
def test_a_mount_point_where_nothing_is_mounted_is_found_for_all_that_is_below(place: Path, line: str) -> None:
    (place.parent / "fstab").write_text(line.format(place=place))
    assert missing_mount(place) == place
    assert missing_mount(place / "images") == place


@pytest.mark.parametrize("line", NO_LINES)
def test_other_lines_name_no_disk_of_a_folder(place: Path, line: str) -> None:
    (place.parent / "fstab").write_text(line.format(place=place))
    assert missing_mount(place) is None


def test_without_a_table_nothing_is_missing(place: Path) -> None:
    assert missing_mount(place) is None


def test_a_mount_point_with_a_space_is_read(place: Path) -> None:
    (place.parent / "fstab").write_text(f"/dev/vdb {place}\\040two ext4 defaults 0 2\n")
    assert missing_mount(Path(f"{place} two")) == Path(f"{place} two")


def test_what_is_mounted_is_not_missing(place: Path) -> None:
    (place.parent / "fstab").write_text("proc /proc proc defaults 0 0\n")
    assert missing_mount(Path("/proc/self")) is None


def test_a_folder_that_is_reached_by_a_symlink_is_where_it_leads(place: Path) -> None:
    (place.parent / "fstab").write_text(f"/dev/vdb {place} ext4 defaults 0 2\n")
    (place.parent / "link").symlink_to(place)
    assert missing_mount(place.parent / "link" / "images") == place
