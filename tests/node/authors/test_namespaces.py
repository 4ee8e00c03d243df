"""Programs start in namespaces of their own, also where `/` is not a mount point."""

import subprocess

import pytest

from nodeplug.testing import namespaces


@pytest.mark.node
@pytest.mark.programs("unshare")
def test_a_program_starts_without_a_warning_where_the_root_is_not_a_mount_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(namespaces, "mounted_at", lambda _: None)
    done = subprocess.run([*namespaces.command(network=False), "true"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
