"""Volume drivers for servers and programs keep every rule, with real programs in place of what a node would have."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need

from nodeplug.testing import conformance

pytestmark = pytest.mark.soak
SERVES = """#!/bin/sh
for last; do :; done
exec bindfs {source} "$last"
"""


@pytest.fixture
def source(has_fuse: None) -> Iterator[Path]:
    """A folder for every user; not below /tmp, since a FUSE program has a /tmp of its own."""
    need("bindfs")
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def mount_program(source: Path, tmp_path: Path) -> str:
    """What stands in for mount(8): it mounts the folder."""
    program = tmp_path / "mount"
    program.write_text(SERVES.format(source=source))
    program.chmod(0o755)
    return str(program)


def test_programs_as_volumes_keep_every_rule(source: Path) -> None:
    secrets = {name: {"required": False} for name in ("key", "password", "token")}
    program = {"command": ["bindfs", "-f", str(source), "{mountpoint}"], "secrets": secrets}
    conformance(
        "fuse", {"programs": {"files": program}}, volume_options={"program": "files"}, isolation="thread"
    ).check()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("plugin", "options"),
    [("nfs", {"server": "a", "path": "/x"}), ("smb", {"server": "a", "share": "x"})],
)
def test_filesystems_of_servers_keep_every_rule(plugin: str, options: dict[str, str], mount_program: str) -> None:
    config: dict[str, Any] = {"servers": ["*"], "mount_program": mount_program}
    conformance(plugin, config, volume_options=options, isolation="thread").check()
