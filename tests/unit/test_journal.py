import os
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeplug import Journal, PluginError
from nodeplug.contract.bounded import RECORD_LIMIT
from nodeplug.contract.journal import file_name


def test_a_record_is_read_back_as_written(tmp_path: Path) -> None:
    Journal(tmp_path / "j").write("a/b", phase="staged", data={"n": 1}, request={"r": "x"})
    entry = Journal(tmp_path / "j").read("a/b")
    assert entry is not None
    assert (entry.key, entry.phase, entry.data, entry.request) == ("a/b", "staged", {"n": 1}, {"r": "x"})


def test_data_may_be_any_mapping_that_json_takes(tmp_path: Path) -> None:
    lists = defaultdict(list, a=[1])
    assert Journal(tmp_path).write("k", phase="p", data={"n": Counter(ab=2), "m": lists}).data["m"] is lists
    entry = Journal(tmp_path).read("k")
    assert entry is not None
    assert entry.data == {"n": {"ab": 2}, "m": {"a": [1]}}


def test_an_unknown_key_reads_as_none(tmp_path: Path) -> None:
    assert Journal(tmp_path).read("x") is None


def test_removing_twice_succeeds(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("k", phase="p")
    journal.remove("k")
    journal.remove("k")
    assert journal.entries() == ()


def test_a_file_cut_in_half_is_set_aside(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("good", phase="p")
    journal.write("bad", phase="p", data={"x": "y" * 100})
    path = tmp_path / f"{file_name('bad')}.json"
    path.write_bytes(path.read_bytes()[:40])
    assert [entry.key for entry in journal.entries()] == ["good"]
    assert (tmp_path / "bad.damaged").exists()


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b'{"version": 2}', b"\xff\xfe", b'{"version":1,"key":"k"}'])
def test_any_damage_reads_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "k.json").write_bytes(content)
    assert Journal(tmp_path).read("k") is None


def test_a_record_of_another_boot_is_stale(tmp_path: Path) -> None:
    entry = Journal(tmp_path, boot_id="before").write("k", phase="p")
    assert Journal(tmp_path).is_stale(entry)
    assert not Journal(tmp_path, boot_id="before").is_stale(entry)


@pytest.mark.parametrize("key", ["..", ".", "a/../b", "x" * 5000, "\n", "é", "\udcff", "a b", ".tmp"])
def test_any_key_makes_one_safe_file_name(tmp_path: Path, key: str) -> None:
    journal = Journal(tmp_path / "j")
    journal.write(key, phase="p")
    assert [path.parent for path in (tmp_path / "j").iterdir()] == [tmp_path / "j"]
    assert [entry.key for entry in journal.entries()] == [key]


def test_long_keys_that_begin_alike_stay_apart() -> None:
    assert file_name("x" * 300 + "a") != file_name("x" * 300 + "b")


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PluginError, match="cannot make the journal folder"):
        Journal(tmp_path / "file" / "j").write("k", phase="p")


def _sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(3 << 30)


ODD: dict[str, Callable[[Path], None]] = {
    "a sparse file of 3 GiB": _sparse,
    "a directory": Path.mkdir,
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_what_is_no_record_is_set_aside_unread(tmp_path: Path, make: Callable[[Path], None]) -> None:
    journal = Journal(tmp_path)
    journal.write("good", phase="p")
    make(tmp_path / "bad.json")
    assert [entry.key for entry in journal.entries()] == ["good"]
    assert journal.read("bad") is None
    assert (tmp_path / "bad.damaged").exists()
    assert not (tmp_path / "bad.json").exists()


def test_a_record_too_large_to_be_read_again_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="too large for the journal"):
        Journal(tmp_path).write("k", phase="p", data={"x": "y" * RECORD_LIMIT})
