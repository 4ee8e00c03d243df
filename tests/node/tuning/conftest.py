"""A container whose interface another plugin made, and tuning for it."""

import pytest
from tests.node.tuning.lab import Pod, make_pod

from nodeplug import Netns
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.tuning.plugin import Tuning, TuningConfig


@pytest.fixture
def tuning(scratch: ScratchCni) -> Tuning:
    allowlist = scratch.folder / "allowlist.conf"
    plugin = Tuning(TuningConfig(allowlist=allowlist, data_dir=scratch.folder / "tuning"), scratch.host)
    scratch.on_host(plugin.start)
    return plugin


@pytest.fixture
def pod(scratch: ScratchCni) -> Netns:
    """A container whose interface eth0 another plugin made."""
    return make_pod(scratch)


@pytest.fixture
def call(scratch: ScratchCni, tuning: Tuning, pod: Netns) -> Pod:
    return Pod(scratch, tuning, pod)
