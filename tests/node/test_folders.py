"""A temporary folder is removed, and never what is only mounted in it."""

from pathlib import Path

import pytest

from nodeplug import TryAgain, bind, unmount
from nodeplug.testing import folders


def test_a_folder_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").touch()
    folders.remove(folder)
    assert not folder.exists()
    folders.remove(folder)


def test_what_is_mounted_in_it_keeps_every_file_and_is_named(tmp_path: Path) -> None:
    own, folder = tmp_path / "own", tmp_path / "folder"
    own.mkdir()
    (own / "file").touch()
    (folder / "bound").mkdir(parents=True)
    bind(str(own), str(folder / "bound"))
    try:
        with pytest.raises(TryAgain, match="bound is still mounted"):
            folders.remove(folder)
        assert (own / "file").exists()
    finally:
        unmount(str(folder / "bound"))
    folders.remove(folder)
    assert (own / "file").exists()
