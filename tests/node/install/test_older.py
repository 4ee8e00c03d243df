"""What versions before this one installed, and what becomes of it."""

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.node.install.conftest import Node

pytestmark = pytest.mark.unprivileged


def linked(node: "Node") -> None:
    """Install as older versions did: one script, and a symlink to it for each claim."""
    node.cni_bin.mkdir(parents=True)
    (node.cni_bin / "nodeplug-cni").write_bytes(node.scripts().cni)
    (node.cni_bin / "nodeplug-cni").chmod(0o755)
    for name in ("nodeplug-bridge", "nodeplug-loopback", "nodeplug-gone"):
        (node.cni_bin / name).symlink_to("nodeplug-cni")


def test_symlinks_of_an_older_version_become_files_and_their_script_goes(node: "Node") -> None:
    linked(node)
    report = node.install()
    assert node.names(node.cni_bin) == ["nodeplug-bridge", "nodeplug-loopback"]
    assert not any(path.is_symlink() for path in node.cni_bin.iterdir())
    assert [len(paths) for paths in (report.created, report.updated, report.removed)] == [1, 2, 2]


def test_an_upgrade_that_was_killed_half_way_is_finished_by_the_next(node: "Node") -> None:
    linked(node)
    (node.cni_bin / "nodeplug-bridge").unlink()
    (node.cni_bin / "nodeplug-bridge").write_bytes(node.scripts().cni)
    (node.cni_bin / "nodeplug-cni").unlink()  # the other names lead nowhere
    node.install()
    assert node.names(node.cni_bin) == ["nodeplug-bridge", "nodeplug-loopback"]
    assert subprocess.run([node.cni_bin / "nodeplug-loopback"], check=False).returncode == 0


def test_what_an_older_version_installed_is_removed_by_uninstall(node: "Node") -> None:
    linked(node)
    node.uninstall()
    assert node.names(node.cni_bin) == []


def test_no_call_fails_while_symlinks_become_files(node: "Node") -> None:
    ended, name = node.root / "ended", node.cni_bin / "nodeplug-bridge"
    linked(node)
    # Callers are processes of their own, as runtimes are: a fork here would hold a file that is still being written.
    calls = f'until [ -e {ended} ]; do said=$({name} 2>&1); [ "$said" = one ] || echo "$said"; done'
    callers = [subprocess.Popen(["/bin/sh", "-c", calls], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        for _ in range(20):
            node.install()
            temporary = node.cni_bin / "temporary"
            temporary.write_bytes(node.scripts().cni)
            temporary.chmod(0o755)
            temporary.rename(node.cni_bin / "nodeplug-cni")
            temporary.symlink_to("nodeplug-cni")
            temporary.rename(name)
    finally:
        ended.touch()
    assert [caller.communicate()[0] for caller in callers] == ["", ""]
