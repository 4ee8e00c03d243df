"""What `nodeplug install` finds of container runtimes that do not run."""

from pathlib import Path

import pytest

from nodeplug.config import Supervisor
from nodeplug.install import runtimes


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ("containerd containerd.io 1.7.24 88bf19b", (1, 7)),
        ("containerd github.com/containerd/containerd v2.1.0-rc.1 a", (2, 1)),
        ("", (0, 0)),
    ],
)
def test_a_program_tells_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, version: tuple[int, int]
) -> None:
    program = tmp_path / "containerd"
    program.write_text(f"#!/bin/sh\necho {says}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(runtimes, "sockets", lambda _: {})  # this machine's own may run
    assert runtimes.Runtime("containerd", version, str(program)) in runtimes.find(Supervisor().paths)
