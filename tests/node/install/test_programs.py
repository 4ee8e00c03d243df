"""Installation of scripts whose first line names a compiled program beside them."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from nodeplug.config import Paths, Supervisor
from nodeplug.install.files import install, uninstall
from nodeplug.install.ownership import installed_kind
from nodeplug.install.scripts import MARKER, Scripts, leader

pytestmark = pytest.mark.unprivileged

ANSWER = b'{"status":"Success","capabilities":{"attach":false}}'
BODY = b"#!/bin/sh\n" + MARKER + b"\necho one\n"
PLAIN = Scripts(BODY, BODY)
COMPILED = replace(PLAIN, cni_program=b"\x7fELF", flex_program=b"\x7fELF")


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Supervisor(root=tmp_path).paths


def put(paths: Paths, scripts: Scripts, *, cni: bool = True, flex: bool = True) -> None:
    drivers = {"a/b": ANSWER} if flex else {}
    install(cni=["nodeplug-bridge"] if cni else [], drivers=drivers, paths=paths, scripts=scripts, prune=False)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_program_lies_beside_each_script_that_names_it(paths: Paths) -> None:
    shell = Path("/bin/sh").read_bytes()  # a program that reads the script whose first line names it
    put(paths, replace(PLAIN, cni_program=shell, flex_program=shell))
    for script in (paths.cni_bin / "nodeplug-bridge", paths.flexvolume / "a~b/b"):
        assert subprocess.run([script], capture_output=True, text=True, check=True).stdout == "one\n"
        assert leader(script.read_bytes()).parent == script.parent
        assert leader(script.read_bytes()).read_bytes() == shell


def test_uninstall_removes_programs_too(paths: Paths) -> None:
    put(paths, COMPILED)
    uninstall(paths)
    assert (names(paths.cni_bin), names(paths.flexvolume)) == ([], [])


def test_half_removed_driver_with_a_program_is_still_ours(paths: Paths) -> None:
    put(paths, COMPILED)
    (paths.flexvolume / "a~b/b").unlink()
    put(paths, PLAIN)
    assert (paths.flexvolume / "a~b/b").read_bytes() == BODY


def test_kind_is_that_of_what_is_installed(paths: Paths) -> None:
    seen = [installed_kind(paths)]
    for scripts in (PLAIN, COMPILED):
        put(paths, scripts)
        seen.append(installed_kind(paths))
    assert seen == ["", "script", "native"]


def test_kind_is_mixed_while_an_exchange_is_half_done(paths: Paths) -> None:
    put(paths, PLAIN)
    put(paths, COMPILED, flex=False)
    assert installed_kind(paths) == "mixed"


def test_program_in_the_place_of_a_script_as_older_versions_put_it_is_replaced(paths: Paths) -> None:
    put(paths, PLAIN)
    (paths.cni_bin / "nodeplug-bridge").write_bytes(b"\x7fELF" + MARKER)
    put(paths, COMPILED)
    assert leader((paths.cni_bin / "nodeplug-bridge").read_bytes()).name.startswith(".nodeplug.")
