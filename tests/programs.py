"""Programs of the machine that tests execute: each test declares its own, and is skipped without them.

A test or fixture declares programs by `need`, a module or test also by the mark `programs`. As root, fanotify(7)
reports what the processes of a test execute, in whatever namespaces, and a test fails that executes a program which it
has not declared. Programs are those of the system's folders: the same name may be another program elsewhere on PATH.

`pytest --without NAME,...` hides programs from the tests. `--programs FILE` records what each test declares and
executes.
"""

import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.descendants import Descendants
from tests.fanotify import Executions, Identity

from nodeplug import mount, unmount

SYSTEM = "/usr/sbin:/usr/bin:/sbin:/bin"
PACKAGES: Mapping[str, str] = {
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
    "awk": "mawk",
    "bindfs": "bindfs",
    "blkid": "util-linux",
    "bridge": "iproute2",
    "btrfs": "btrfs-progs",
    "busybox": "busybox-static",
    "cc": "gcc libc6-dev",
    "chroot": "coreutils",
    "containerd": "containerd",
    "debugfs": "e2fsprogs",
    "dnsmasq": "dnsmasq-base",
    "e2fsck": "e2fsprogs",
    "etcd": "etcd-server",
    "findmnt": "util-linux",
    "fsfreeze": "util-linux",
    "gcc": "gcc libc6-dev",
    "git": "git",
    "ip": "iproute2",
    "ip6tables": "iptables",
    "iptables": "iptables",
    "iptables-legacy": "iptables",
    "kill": "procps",
    "kubectl": "kubernetes-client",
    "losetup": "mount",
    "lsblk": "util-linux",
    "make": "make",
    "mkfs.btrfs": "btrfs-progs",
    "mkfs.erofs": "erofs-utils",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "mksquashfs": "squashfs-tools",
    "modprobe": "kmod",
    "mount": "mount",
    "nft": "nftables",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "ping": "iputils-ping",
    "podman": "podman",
    "ps": "procps",
    "qemu-aarch64": "qemu-user",
    "resize2fs": "e2fsprogs",
    "runc": "runc",
    "s3fs": "s3fs",
    "setpriv": "util-linux",
    "sqfstar": "squashfs-tools",
    "strace": "strace",
    "sysctl": "procps",
    "systemctl": "systemd",
    "systemd-run": "systemd",
    "tc": "iproute2",
    "umount": "mount",
    "unshare": "util-linux",
    "xfs_growfs": "xfsprogs",
}
"""Debian's packages of the programs that tests declare."""
_WORDS = (
    "base64 bash cat chgrp chmod chown cp cut date dd dirname du echo env expand expr false find grep head hostname id "
    "install gzip ld.so ldd ln ls mkdir mkfifo mktemp mv nice nohup printf pwd readlink realpath rm rmdir "
    "sed sh sha256sum sleep sort stat sync tail tar tee test timeout touch tr true truncate tty uname "
    "uniq wc which xargs yes"
)
BASE = frozenset(_WORDS.split())
"""Programs that need no declaration: a shell, the loader, and what POSIX or coreutils has. Python is one more."""
BROUGHT: Mapping[str, Sequence[str]] = {
    "aarch64-linux-gnu-gcc": ("aarch64-linux-gnu-as", "aarch64-linux-gnu-ld"),
    "cc": ("as", "ld"),
    "containerd": ("containerd-shim-runc-v2", "ctr"),
    "gcc": ("as", "ld"),
    "podman": ("conmon",),
}
"""What comes with a declared program: from its package, or from one that its own depends on."""
OPTIONAL = ("file", "getopt", "ldconfig", "lsb_release", "cc", "gcc", "as", "ld")
"""What is executed where it is there, and done without elsewhere: by Python, by pip, and by `nodeplug install`."""
COMPILERS = frozenset({"cc", "gcc"})
"""Of these, what a test that executes it itself declares all the same."""
_DECLARED = pytest.StashKey[set[str]]()
_FOLDERS = tuple(dict.fromkeys(str(Path(folder).resolve()) for folder in SYSTEM.split(":")))


def path_of(name: str) -> str | None:
    """Return the path of a program in the system's folders, or None."""
    return shutil.which(name, path=SYSTEM)


class Programs:
    """The plugin of pytest that knows what each test declares and sees what it executes.

    Args:
        record: a file for what each test declares and executes, or None.
    """

    def __init__(self, record: Path | None) -> None:
        self._record = record
        self._by_fixture: dict[str, set[str]] = {}
        self._setting_up: list[str] = []
        self._item: pytest.Item | None = None
        self._executions: Executions | None = None
        self._descendants: Descendants | None = None
        self._compilers: set[str] = set()
        self.machine_network = -1
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            folder, _, name = os.fsdecode(arguments[0] or arguments[1][0]).rpartition("/")
            if folder in ("", *_FOLDERS):
                self._compilers |= COMPILERS & {name}

    def follow(self) -> None:
        """Know from now on which processes are started by this one. It must be in the machine's network namespace."""
        self.machine_network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        with suppress(OSError):
            self._descendants = Descendants()

    def watch(self) -> None:
        """Report executions from now on: of all processes that this one starts.

        Where the kernel does not say who started whom, those in this process's mount namespace are reported.
        """
        self._executions = Executions(_FOLDERS, everywhere=self._descendants is not None)

    def declare(self, names: Iterable[str]) -> None:
        """Note programs for the test that runs, and for every test that uses the fixture that is being set up."""
        if self._setting_up:
            self._by_fixture.setdefault(self._setting_up[-1], set()).update(names)
        if self._item is not None:
            self._item.stash.setdefault(_DECLARED, set()).update(names)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        self._setting_up.append(_key(fixturedef))
        try:
            return (yield)
        finally:
            self._setting_up.pop()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._item = item
        for mark in item.iter_markers("programs"):
            need(*mark.args)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        fixtures = getattr(item, "_request")._fixture_defs.values()  # noqa: B009 - also those asked for by name
        try:
            return (yield)
        finally:
            self._item = None
            executed = self._executed()
            declared = set(item.stash.get(_DECLARED, ()))
            declared.update(*(self._by_fixture.get(_key(one), ()) for one in fixtures))
            self._note(item, declared, executed)
            undeclared = (executed - _resolved([*declared, *OPTIONAL])) | (self._compilers - declared)
            self._compilers = set()
            assert not undeclared, (
                f"{item.nodeid} executes {', '.join(sorted(undeclared))}, "
                "which neither it nor a fixture of it declares: see tests/programs.py"
            )

    def _executed(self) -> set[str]:
        """Return the programs of the system that ran since the last call, without what every machine has."""
        if self._executions is None:
            return set()
        seen = list(self._executions.drain())
        own = self._descendants.executing() if self._descendants is not None else {pid for pid, _ in seen}
        return {_files()[file] for pid, file in seen if pid in own and file in _files()} - _base()

    def _note(self, item: pytest.Item, declared: set[str], executed: set[str]) -> None:
        if self._record is not None and (declared or executed):
            line = {"test": item.nodeid, "declares": sorted(declared), "executes": sorted(executed)}
            with self._record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


_current: Programs | None = None


def register(config: pytest.Config) -> Programs:
    """Make the one plugin of this session."""
    global _current  # noqa: PLW0603 - `need` is called where no config is at hand
    _current = Programs(config.getoption("programs"))
    config.pluginmanager.register(_current, "programs")
    return _current


def machine_network() -> int:
    """Return a descriptor of the network namespace that pytest was started in."""
    assert _current is not None
    return _current.machine_network


def need(*names: str) -> None:
    """Declare programs for the test or fixture that calls, and skip it where one is missing.

    Args:
        names: programs in `PACKAGES`.
    """
    unknown = sorted(set(names) - PACKAGES.keys())
    assert not unknown, f"tests/programs.py names no package of {', '.join(unknown)}"
    if _current is not None:
        _current.declare(names)
    missing = [name for name in names if path_of(name) is None]
    if missing:
        packages = dict.fromkeys(PACKAGES[name] for name in missing)
        pytest.skip(f"needs {', '.join(missing)}: apt-get install {' '.join(packages)}")


def may_execute(*names: str) -> None:
    """Declare programs that something executes where they are, and does without elsewhere: nothing is skipped.

    Args:
        names: programs in `PACKAGES`.
    """
    need(*(name for name in names if path_of(name) is not None))


def need_command(words: Sequence[str]) -> None:
    """Declare the program of a command line, unless every machine has it."""
    need(*PACKAGES.keys() & {words[0]})


def hide(names: Sequence[str]) -> None:
    """Take programs out of every folder of PATH and of the system, in this process's mount namespace.

    Raises:
        OSError: the kernel mounts no overlay here.
    """
    for folder in dict.fromkeys([*_FOLDERS, *map(os.path.realpath, os.environ["PATH"].split(":"))]):
        found = [name for name in names if os.path.lexists(Path(folder) / name)]
        if not found:
            continue
        place = Path(tempfile.mkdtemp(prefix="np-without-"))
        mount("nodeplug", str(place), "tmpfs")
        upper, work = place / "upper", place / "work"
        upper.mkdir()
        work.mkdir()
        for name in found:
            os.mknod(upper / name, stat.S_IFCHR, os.makedev(0, 0))  # how an overlay says that it is removed
        mount("overlay", folder, "overlay", options=[f"lowerdir={folder}", f"upperdir={upper}", f"workdir={work}"])
        unmount(str(place), lazy=True)  # the overlay keeps what it is made of
        place.rmdir()


@cache
def _base() -> frozenset[str]:
    pythons = [path for folder in _FOLDERS for path in Path(folder).glob("python3*")]
    return frozenset(canonical(path) for path in [*map(path_of, BASE), *pythons] if path is not None)


def _identity(path: str | Path) -> Identity:
    status = Path(path).stat()
    return status.st_dev, status.st_ino


def canonical(path: str | Path) -> str:
    """Return one name of a program that has several."""
    return _files().get(_identity(path), os.path.realpath(path))


@cache
def _files() -> Mapping[Identity, str]:
    """Return the programs of the system's folders by what tells them in every mount namespace."""
    found: dict[Identity, str] = {}
    for path in (path for folder in _FOLDERS for path in Path(folder).iterdir()):
        with suppress(OSError):  # a link to nothing
            if str((real := path.resolve()).parent) in _FOLDERS:
                found[_identity(real)] = str(real)
    return found


def _resolved(names: Iterable[str]) -> set[str]:
    """Return the files of declared programs and of what these bring; one file may have several names."""
    allowed = [program for name in names for program in (name, *BROUGHT.get(name, ()))]
    return {canonical(path) for path in map(path_of, allowed) if path is not None}


def _key(fixturedef: pytest.FixtureDef[object]) -> str:
    return f"{fixturedef.baseid}::{fixturedef.argname}"
