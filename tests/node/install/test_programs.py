"""Installation of scripts whose first line names a compiled program beside them."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from nodeplug.install.files import install, uninstall
from nodeplug.install.ownership import Folders, installed_kind
from nodeplug.install.scripts import MARKER, Scripts, leader

pytestmark = pytest.mark.unprivileged

ANSWER = b'{"status":"Success","capabilities":{"attach":false}}'
BODY = b"#!/bin/sh\n" + MARKER + b"\necho one\n"
PLAIN = Scripts(BODY, BODY)
COMPILED = replace(PLAIN, cni_program=b"\x7fELF", flex_program=b"\x7fELF")


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path / "opt/cni/bin", tmp_path / "etc/cni/net.d", tmp_path / "kubelet/exec")


def put(folders: Folders, scripts: Scripts, *, cni: bool = True, flex: bool = True) -> None:
    drivers = {"a/b": ANSWER} if flex else {}
    install(cni=["nodeplug-bridge"] if cni else [], drivers=drivers, folders=folders, scripts=scripts, prune=False)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_program_lies_beside_each_script_that_names_it(folders: Folders) -> None:
    shell = Path("/bin/sh").read_bytes()  # a program that reads the script whose first line names it
    put(folders, replace(PLAIN, cni_program=shell, flex_program=shell))
    for script in (folders.cni_bin / "nodeplug-bridge", folders.flex / "a~b/b"):
        assert subprocess.run([script], capture_output=True, text=True, check=True).stdout == "one\n"
        assert leader(script.read_bytes()).parent == script.parent
        assert leader(script.read_bytes()).read_bytes() == shell


def test_uninstall_removes_programs_too(folders: Folders) -> None:
    put(folders, COMPILED)
    uninstall(folders=folders)
    assert (names(folders.cni_bin), names(folders.flex)) == ([], [])


def test_half_removed_driver_with_a_program_is_still_ours(folders: Folders) -> None:
    put(folders, COMPILED)
    (folders.flex / "a~b/b").unlink()
    put(folders, PLAIN)
    assert (folders.flex / "a~b/b").read_bytes() == BODY


def test_kind_is_that_of_what_is_installed(folders: Folders) -> None:
    seen = [installed_kind(folders)]
    for scripts in (PLAIN, COMPILED):
        put(folders, scripts)
        seen.append(installed_kind(folders))
    assert seen == ["", "script", "native"]


def test_kind_is_mixed_while_an_exchange_is_half_done(folders: Folders) -> None:
    put(folders, PLAIN)
    put(folders, COMPILED, flex=False)
    assert installed_kind(folders) == "mixed"


def test_program_in_the_place_of_a_script_as_older_versions_put_it_is_replaced(folders: Folders) -> None:
    put(folders, PLAIN)
    (folders.cni_bin / "nodeplug-bridge").write_bytes(b"\x7fELF" + MARKER)
    put(folders, COMPILED)
    assert leader((folders.cni_bin / "nodeplug-bridge").read_bytes()).name.startswith(".nodeplug.")
