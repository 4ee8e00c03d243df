"""The fixtures that pytest finds wherever nodeplug is installed.

Owns: their names, what each needs, and when it is skipped.
Refuses: imports of nodeplug at the top: pytest loads this module in every run in its environment, whatever the tests
are. Each fixture imports what it needs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nodeplug.testing import (
        BlockingKubelet,
        CniRuntimeFactory,
        CsiCallerFactory,
        DraCluster,
        FlexCallerFactory,
        SchedulerFactory,
        ScratchNode,
    )
    from nodeplug.testing.isolation import Isolation

_KEY = "nodeplug_config"
_WAY = "nodeplug_isolation"
_EACH_WAY = "_nodeplug_each_way"
_WAYS = ("thread", "process")
_NO_CONFIG = (
    "scratch_node does not know which plugins its node has; set in pyproject.toml, below [tool.pytest.ini_options], "
    'nodeplug_config = ["FILE"] (it has [plugins.*] tables), or write a fixture nodeplug_config that returns such text'
)
_NEEDS_ROOT = "needs root; an ordinary user can run: unshare --map-root-user --net --mount -- pytest"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the ini keys with which a project says what its node runs, and how."""
    parser.addini(
        _KEY, "files with the [plugins.*] tables of scratch_node's node, relative to the ini-file", type="paths"
    )
    parser.addini(
        _WAY,
        "how the node runs plugins whose sections do not say: thread, process, or both: each test twice",
        default="",
    )
    parser.getgroup("nodeplug").addoption(
        "--nodeplug-isolation",
        choices=(*_WAYS, "both"),
        help="how plugins run whose sections do not say, in place of the ini key nodeplug_isolation",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test twice whose node is to run its plugins in both ways."""
    if _EACH_WAY in metafunc.fixturenames and _asked(metafunc.config) == "both":
        metafunc.parametrize(_EACH_WAY, _WAYS, indirect=True)


def _asked(config: pytest.Config) -> str:
    asked = str(config.getoption("--nodeplug-isolation") or config.getini(_WAY))
    if asked not in ("", *_WAYS, "both"):
        raise pytest.UsageError(f"{_WAY} = {asked!r} is no isolation; take thread, process or both")
    return asked


@pytest.fixture
def nodeplug_config(pytestconfig: pytest.Config) -> str:
    """The `[plugins.*]` tables of the node, in TOML: by default, the files named by the ini key `nodeplug_config`.

    `{scratch}` in it stands for an empty folder of the node.
    """
    files = pytestconfig.getini(_KEY)
    if not files:
        pytest.fail(_NO_CONFIG, pytrace=False)
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


@pytest.fixture
def nodeplug_may_stay() -> Sequence[str]:
    """What may be left at the end: regular expressions for whole lines such as `link br0`. By default nothing."""
    return ()


@pytest.fixture
def _nodeplug_each_way(request: pytest.FixtureRequest) -> Isolation | None:
    way: Any = getattr(request, "param", "") or _asked(request.config)
    return way or None


@pytest.fixture
def nodeplug_isolation(_nodeplug_each_way: Isolation | None) -> Isolation | None:
    """How plugins run whose sections do not say: `"thread"` or `"process"`, by the ini key `nodeplug_isolation`."""
    return _nodeplug_each_way


@pytest.fixture
def scratch_node(
    nodeplug_config: str, nodeplug_may_stay: Sequence[str], nodeplug_isolation: Isolation | None
) -> Iterator[ScratchNode]:
    """A running daemon with the plugins of `nodeplug_config`, its entrypoints installed, all paths in one folder."""
    from nodeplug.testing import rig  # noqa: PLC0415 - see the module's first lines

    with rig.scratch_node(nodeplug_config, may_stay=nodeplug_may_stay, isolation=nodeplug_isolation) as node:
        yield node


@pytest.fixture
def kubelet(scratch_node: ScratchNode) -> Iterator[BlockingKubelet]:
    """Kubelet's device manager, with which the node's plugins register themselves."""
    from nodeplug.testing import BlockingKubelet  # noqa: PLC0415 - see the module's first lines

    with BlockingKubelet(scratch_node.root / "var" / "lib" / "kubelet") as made:
        yield made


@pytest.fixture
def dra_cluster(scratch_node: ScratchNode) -> Iterator[DraCluster]:
    """API server, scheduler and kubelet for claims of the node's devices, of sections with `serve = "dra"`."""
    from nodeplug.testing import DraCluster  # noqa: PLC0415 - see the module's first lines

    with DraCluster(scratch_node) as made:
        yield made


@pytest.fixture
def _namespaces() -> None:
    if os.geteuid() != 0:
        pytest.skip(_NEEDS_ROOT)


@pytest.fixture
def cni_runtime(_namespaces: None, scratch_node: ScratchNode) -> Iterator[CniRuntimeFactory]:
    """A container runtime on the node: `cni_runtime(conflist)`; `cni_runtime.sandbox(name)` makes a pod's namespace."""
    from nodeplug.testing import pods  # noqa: PLC0415 - see the module's first lines

    made = pods.CniRuntimeFactory(scratch_node)
    yield made
    pods.ensure_running(scratch_node)
    made.close()


@pytest.fixture
def flex_caller(_namespaces: None, scratch_node: ScratchNode) -> Iterator[FlexCallerFactory]:
    """Kubelet's FlexVolume side on the node: `flex_caller("vendor/driver")`."""
    from nodeplug.testing import pods  # noqa: PLC0415 - see the module's first lines

    made = pods.FlexCallers(scratch_node)
    yield made
    pods.ensure_running(scratch_node)
    made.close()


@pytest.fixture
def csi_caller(_namespaces: None, scratch_node: ScratchNode) -> Iterator[CsiCallerFactory]:
    """Kubelet's CSI side on the node: `csi_caller("driver.vendor")`."""
    from nodeplug.testing import pods  # noqa: PLC0415 - see the module's first lines

    made = pods.CsiCallers(scratch_node)
    yield made
    pods.ensure_running(scratch_node)
    made.close()


@pytest.fixture
def kube_scheduler(scratch_node: ScratchNode) -> Iterator[SchedulerFactory]:
    """kube-scheduler, which asks an extender of the node: `kube_scheduler("example")`."""
    from nodeplug.testing import pods  # noqa: PLC0415 - see the module's first lines

    made = pods.Schedulers(scratch_node)
    yield made
    made.close()
