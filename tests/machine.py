"""What a test needs of the machine that is no program and no kind of link."""

import os
from pathlib import Path

import pytest
from tests import programs

from nodeplug import NotReady
from nodeplug_volumes import loopdev


@pytest.fixture(scope="session")
def has_compiler() -> None:
    """Skip where entrypoints cannot be compiled."""
    programs.need("cc")


@pytest.fixture(scope="session")
def compiler_or_none() -> bool:
    """Whether entrypoints can be compiled, for what works without as well and uses a compiler if there is one."""
    programs.may_execute("cc")
    return programs.path_of("cc") is not None


@pytest.fixture(scope="session")
def has_loop_devices() -> None:
    """Skip for an ordinary user, and where the kernel, or the `/dev` of a container or chroot, has no loop devices."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    try:
        loopdev.check()
    except NotReady:
        pytest.skip("needs loop devices: modprobe loop, and /dev/loop-control in a container or chroot")


@pytest.fixture(scope="session")
def has_fuse() -> None:
    """Skip where no filesystem can be served from user space."""
    if not Path("/dev/fuse").exists():
        pytest.skip("needs FUSE: modprobe fuse, and /dev/fuse in a container or chroot")
