"""Rules for every test: where it runs, beside which others, what may be skipped, and what it must not leave behind.

As root, each process that runs tests has a mount and a network namespace of its own, so what one test mounts, links or
listens on is nothing to those that run beside it.
"""

import gc
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from pyroute2 import IPRoute
from tests import environments, programs

from nodeplug import NotReady, PluginError
from nodeplug.testing import folders, forked, namespaces
from nodeplug.testing.waiting import until
from nodeplug_volumes import loopdev

pytest_plugins = ["tests.suites", "tests.costs", "tests.own_descriptors"]

# A loaded machine is no failure: neither an example that takes long, nor few of them in a second.
settings.register_profile("nodeplug", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("few", settings.get_profile("nodeplug"), max_examples=20)
settings.register_profile("many", settings.get_profile("nodeplug"), max_examples=300)
settings.load_profile(os.environ.get("NODEPLUG_EXAMPLES", "few"))

NAMESPACES = pytest.StashKey[str]()
"""Why there are none, or nothing."""
SHARED = frozenset(["class", "module", "package"])
ALLOWED = Path(__file__).parents[1] / ".ci" / "allowed-skips"


# Where the environment says that compiled modules are not kept, each process that runs tests would compile every test,
# and each daemon whatever has changed since it was set up.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# pytest's folder for tests has the user's name in its own, which may be long; a socket's path has 107 bytes at most.
os.environ["LOGNAME"] = str(os.geteuid())


def _import_bench() -> None:
    """Let tests import the benchmark, which no installation has. A path to it would lead to the tests as well."""
    place = Path(__file__).parents[1] / "bench" / "__init__.py"
    spec = importlib.util.spec_from_file_location("bench", place, submodule_search_locations=[str(place.parent)])
    if spec is None or spec.loader is None:
        raise ImportError(place)
    sys.modules["bench"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["bench"])


_import_bench()


def allowed_skips() -> list[re.Pattern[str]]:
    lines = (line.strip() for line in ALLOWED.read_text().splitlines())
    return [re.compile(line) for line in lines if line and not line.startswith("#")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if os.environ.get("NODEPLUG_CI") and report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr).removeprefix(
            "Skipped: "
        )
        if not any(pattern.fullmatch(reason) for pattern in allowed_skips()):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} was skipped where everything is supposed to be there: {reason}"
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--programs", type=Path, help="record in this file which programs each test declares and executes")
    parser.addoption("--without", default="", help="hide these programs from the tests (as root): names with commas")


def pytest_configure(config: pytest.Config) -> None:
    declared = programs.register(config)
    forked.workers_too = True
    # The distribution's own programs, whatever has the same name elsewhere on PATH.
    os.environ["PATH"] = f"{programs.SYSTEM}:{os.environ['PATH']}"
    # A background job of a shell ignores Ctrl-C, and so do its children: tests that press it would wait for ever.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hidden = [name for name in config.getoption("without").split(",") if name]
    config.stash[NAMESPACES] = "needs root"
    if os.geteuid() != 0:
        _refuse_to_hide(hidden, "needs root")
        return
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        return  # its workers run the tests
    declared.follow()
    try:
        namespaces.enter(network=True)
    except PluginError as error:
        _refuse_to_hide(hidden, str(error))
        config.stash[NAMESPACES] = f"needs root that may make namespaces: {error}"
    else:
        with IPRoute() as route:
            route.link("set", index=route.link_lookup(ifname="lo")[0], state="up")
        config.stash[NAMESPACES] = ""
        programs.hide(hidden)
        declared.watch()


def _refuse_to_hide(names: list[str], why: str) -> None:
    if names:
        raise pytest.UsageError(f"--without {','.join(names)}: programs cannot be hidden here: {why}")


def _needs_root(item: pytest.Item) -> bool:
    """Tell what the nearest mark says, and without one the folder."""
    said = next((mark.name for mark in item.iter_markers() if mark.name in {"node", "real", "unprivileged"}), "")
    return said != "unprivileged" if said else bool({"node", "real"} & set(item.path.parts))


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lacking = config.stash[NAMESPACES]
    root = pytest.mark.skipif(bool(lacking), reason=lacking or "needs root")
    for item in items:
        if _needs_root(item):
            item.add_marker(root)
        if item.get_closest_marker("xdist_group") is None and (group := group_of(item)):
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the tests out of the collection of garbage, and refuse to run them side by side if their groups were lost.

    Each process would make the same fixtures then.
    """
    gc.collect()
    gc.freeze()  # thousands of tests, which stay to the end
    if not getattr(session.config.option, "loadgroup", False) or not hasattr(session.config, "workerinput"):
        return
    for item in session.items:
        mark = item.get_closest_marker("xdist_group")
        if mark is not None and not item.nodeid.endswith(f"@{mark.args[0]}"):
            raise pytest.UsageError(f"pytest-xdist does not see the group {mark.args[0]!r} of {item.nodeid}")


def group_of(item: pytest.Item) -> str:
    """Name what must run in one process, one test after the other; most tests may run beside any other.

    A fixture of a whole file is made once for each of its parameters, such as the generation of real consumers.
    """
    assert isinstance(item, pytest.Function)
    fixtures = item._fixtureinfo.name2fixturedefs
    if not any(definition[-1].scope in SHARED for definition in fixtures.values()):
        return ""
    call = item.__dict__.get("callspec")
    shared = (
        [str(value) for name, value in sorted(call.params.items()) if fixtures[name][-1].scope != "function"]
        if call
        else []
    )
    return "-".join([str(item.path), *shared])


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with a short name: sockets below it have at most 107 bytes in their path."""
    path = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    yield path
    until(lambda: not _working_in(path), found=lambda: f"left running: {', '.join(_working_in(path))}")
    folders.remove(path)


def _working_in(path: Path) -> list[str]:
    """Return the processes that name a folder in their arguments; one that has ended names nothing."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(path).encode() in (line := place.read_bytes()):
                found.append(f"{place.parent.name} {line.replace(bytes(1), b' ').decode(errors='replace')}")
    return found


@pytest.fixture(scope="session")
def has_compiler() -> None:
    """Skip where entrypoints cannot be compiled."""
    programs.need("cc")


@pytest.fixture(scope="session")
def compiler_or_none() -> bool:
    """Whether entrypoints can be compiled, for what works without as well and uses a compiler if there is one."""
    found = programs.path_of("cc") is not None
    if found:
        programs.need("cc")
    return found


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


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of wheels: nodeplug, and what it needs without extras."""
    folder = tmp_path_factory.mktemp("wheels")
    environments.pack(["nodeplug", *environments.of_plugins()], folder)
    return folder


@pytest.fixture(scope="session")
def acme_wheels(wheels: Path) -> Path:
    for version in ("1.0", "2.0"):
        environments.pack_acme(wheels, version)
    return wheels


@dataclass(frozen=True)
class OtherUser:
    """An ordinary user, and a Python with nodeplug that this user may run."""

    prefix: tuple[str, ...]
    python: str
    env: dict[str, str]


@pytest.fixture(scope="session")
def other_user() -> OtherUser:
    """The interpreter of the tests may lie in a folder of root's alone; then Debian's runs what is installed here."""
    programs.need("setpriv")
    prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
    root = Path(__file__).parents[1]
    installed = [path for path in sys.path if path.endswith("site-packages")]
    search = os.pathsep.join([str(root / "supervisor"), str(root / "plugins"), *installed])
    probe = "import decimal, grpc, pydantic_core, nodeplug.cli"
    for python, more in ((sys.executable, {}), ("/usr/bin/python3", {"PYTHONPATH": search})):
        env = {"PATH": os.environ["PATH"], "HOME": "/tmp", "LANG": "C.UTF-8", **more}
        # Through a shell: the very first program still runs with what is left of root's capabilities.
        command = [*prefix, "/bin/sh", "-c", 'exec "$0" -c "$1"', python, probe]
        if subprocess.run(command, env=env, cwd="/", capture_output=True, check=False).returncode == 0:
            return OtherUser(prefix, python, env)
    pytest.skip("needs a checkout that other users may read")
