"""Where tests run.

As root, each process that runs tests has a mount and a network namespace of its own, so what one test mounts, links or
listens on is nothing to those that run beside it.
"""

import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from pyroute2 import IPRoute
from tests import programs

from nodeplug import PluginError
from nodeplug.testing import forked, namespaces

pytest_plugins = [
    "tests.suites",
    "tests.groups",
    "tests.skips",
    "tests.costs",
    "tests.machine",
    "tests.other_user",
    "tests.own_descriptors",
    "tests.short_paths",
    "tests.wheels",
]

# A loaded machine is no failure: neither an example that takes long, nor few of them in a second.
settings.register_profile("nodeplug", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("few", settings.get_profile("nodeplug"), max_examples=20)
settings.register_profile("many", settings.get_profile("nodeplug"), max_examples=300)
settings.load_profile(os.environ.get("NODEPLUG_EXAMPLES", "few"))

NAMESPACES = pytest.StashKey[str]()
"""Why there are none, or nothing."""


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lacking = config.stash[NAMESPACES]
    root = pytest.mark.skipif(bool(lacking), reason=lacking or "needs root")
    for item in items:
        if _needs_root(item):
            item.add_marker(root)
