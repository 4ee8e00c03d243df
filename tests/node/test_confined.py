"""A daemon in a container with the runtime's default seccomp profile, which refuses it namespaces of its own."""

import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.node import confined
from tests.suites import divided

from nodeplug.testing import BlockingKubelet, ScratchNode

pytestmark = pytest.mark.unprivileged
RESOURCE = "example.com/null"
PLUGIN = f"""
[[plugins.hostdev.config.resources]]
resource = "{RESOURCE}"
groups = [{{ count = 2, nodes = [{{ path = "/dev/null" }}] }}]
"""


@pytest.mark.whole
@pytest.mark.parametrize("isolation", divided(["thread", "process"], {"thread"}))
def test_devices_are_served_and_no_socket_is_anybody_elses(short_path: Path, isolation: Any) -> None:
    within = [sys.executable, confined.__file__]
    with (
        BlockingKubelet(short_path / "var" / "lib" / "kubelet") as kubelet,
        ScratchNode(short_path, PLUGIN, within=within, isolation=isolation) as node,
    ):
        kubelet.until_allocatable(RESOURCE, 2)
        found = [node.paths.exec_socket, *node.paths.device_plugins.glob("nodeplug-*.sock")]
        assert len(found) == 2
        assert [stat.S_IMODE(path.stat().st_mode) for path in found] == [0o600, 0o600]
        assert "Operation not permitted" not in node.log
