from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeplug import InvalidRequest, PluginError, TryAgain, bind, mount, mounted_at, unmount


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "a target, with a comma"
    path.mkdir()
    yield path
    unmount(str(path), lazy=True)


def test_a_mount_is_seen_under_an_awkward_name(target: Path) -> None:
    mount("none", str(target), "tmpfs", options=["size=64k", "nodev"])
    found = mounted_at(str(target))
    assert found is not None
    assert (found.fs_type, "nodev" in found.options, found.read_only) == ("tmpfs", True, False)


def test_a_plain_folder_is_no_mount(target: Path) -> None:
    assert mounted_at(str(target)) is None


def test_a_symlink_in_the_parent_is_followed(target: Path, tmp_path: Path) -> None:
    mount("none", str(target), "tmpfs")
    (tmp_path / "link").symlink_to(tmp_path)
    assert mounted_at(str(tmp_path / "link" / target.name)) is not None


def test_a_bind_mount_on_the_same_filesystem_is_seen(target: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    bind(str(tmp_path / "source"), str(target))
    assert mounted_at(str(target)) is not None


def test_a_read_only_bind_refuses_writes(target: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    bind(str(tmp_path / "source"), str(target), read_only=True)
    with pytest.raises(OSError, match="Read-only"):
        (target / "file").write_text("")


def test_a_read_only_bind_keeps_the_flags_of_its_source(target: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    mount("none", str(source), "tmpfs", options=["noexec", "nosuid"])
    try:
        bind(str(source), str(target), read_only=True)
        found = mounted_at(str(target))
        assert found is not None
        assert {"noexec", "nosuid", "ro"} <= set(found.options)
    finally:
        unmount(str(target))
        unmount(str(source))


def test_unmount_takes_away_every_layer(target: Path) -> None:
    for _ in range(3):
        mount("none", str(target), "tmpfs")
    unmount(str(target))
    assert mounted_at(str(target)) is None


def test_unmount_of_nothing_succeeds(target: Path) -> None:
    unmount(str(target))
    unmount(str(target / "missing"))


def test_a_busy_mount_says_so(target: Path) -> None:
    mount("none", str(target), "tmpfs")
    with (target / "open").open("w"), pytest.raises(TryAgain, match="it is in use"):
        unmount(str(target))


def test_a_lazy_unmount_detaches_a_busy_mount(target: Path) -> None:
    mount("none", str(target), "tmpfs")
    with (target / "open").open("w"):
        unmount(str(target), lazy=True)
        assert mounted_at(str(target)) is None


def test_a_refused_mount_carries_the_reason_of_the_kernel(target: Path) -> None:
    with pytest.raises(PluginError, match=r"cannot mount 'none' on .* \(nosuchfs\): No such device"):
        mount("none", str(target), "nosuchfs")


def test_a_file_can_be_bound_on_a_file(tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_text("inside")
    target.write_text("outside")
    bind(str(source), str(target))
    try:
        assert target.read_text() == "inside"
    finally:
        unmount(str(target))
    assert target.stat().st_size == len("outside")


@pytest.mark.parametrize("word", ["nofail", "_netdev", "bind", "remount", "user", "x-systemd.automount", ""])
def test_an_option_for_mount_8_is_refused_with_its_name(target: Path, word: str) -> None:
    with pytest.raises(InvalidRequest, match=f"mount option '{word}' means nothing to mount"):
        mount("none", str(target), "tmpfs", options=[word])
    assert mounted_at(str(target)) is None


@pytest.mark.parametrize("word", ["nodiratime", "nosymfollow", "dirsync", "lazytime"])
def test_every_flag_word_reaches_the_kernel_as_a_flag(target: Path, word: str) -> None:
    mount("none", str(target), "tmpfs", options=[word])
    found = mounted_at(str(target))
    assert found is not None
    assert word in found.options


def test_a_later_option_takes_an_earlier_flag_back(target: Path) -> None:
    mount("none", str(target), "tmpfs", options=["nosuid", "noexec", "defaults", "exec", "rw"])
    found = mounted_at(str(target))
    assert found is not None
    assert {"nosuid", "noexec", "rw"} & set(found.options) == {"nosuid", "rw"}


def test_read_only_wins_over_an_option(target: Path) -> None:
    mount("none", str(target), "tmpfs", options=["rw"], read_only=True)
    found = mounted_at(str(target))
    assert found is not None
    assert found.read_only


def test_an_option_that_the_filesystem_does_not_know_is_named_without_its_value(target: Path) -> None:
    with pytest.raises(PluginError, match="may not know one of its options size, password") as caught:
        mount("none", str(target), "tmpfs", options=["size=64k", "password=s3cr3t"])
    assert "s3cr3t" not in str(caught.value)
