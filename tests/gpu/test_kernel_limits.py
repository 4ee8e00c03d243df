"""Limits by the kernel, from Allocate to the cgroup: the plugin, the mock's NVML, real cgroups, and the hook as run.

The hook is the one of the CDI spec, executed as a runtime does it: by its path and arguments, with a state on stdin.
"""

import ast
import errno
import json
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeplug import (
    Device,
    DeviceAllocate,
    DeviceList,
    Grant,
    Holding,
    Host,
    Journal,
    NotFound,
    NotReady,
    ResourceName,
)
from nodeplug.testing import host
from nodeplug.testing.waiting import until
from nodeplug_gpu import allocations
from nodeplug_gpu import plugin as plugin_module
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.containers import Containers
from nodeplug_gpu.kernel import hook, limits, spec
from nodeplug_gpu.kernel.door import Door
from nodeplug_gpu.kernel.held import Held, HeldLimits
from nodeplug_gpu.plugin import Gpu

GIB = 1 << 30
MEM, SHARED = ResourceName("aliyun.com/gpu-mem"), ResourceName("nvidia.com/gpu.shared")
MEMORY: dict[str, Any] = {"sharing": "memory", "cards": {"index": [0]}}
REPLICAS: dict[str, Any] = {"sharing": "replicas", "resource": SHARED, "replicas": 4, "cards": {"index": [0]}}
HANGS = 180.0
"""Seconds after which the test ends a hook that should have ended by itself."""
FIRST = "GPU-00000000-0000-0000-0000-000000000000"
SET = "nvmlDeviceSetMemoryLimits_v1"


class Node:
    """A node with the mock's cards, on which containers start."""

    def __init__(self, folder: Path, nvml: Any, cgroups: Any) -> None:
        self.folder, self.nvml, self.cgroups = folder, nvml, cgroups
        self.held: list[Holding] = []
        self.made: list[Gpu] = []
        self.sleepers: list[subprocess.Popen[bytes]] = []
        (folder / "containers").mkdir()

    def plugin(
        self,
        wanted: str | None = "kernel",
        resources: Sequence[Mapping[str, Any]] = (MEMORY,),
        section: str = "host",
        former: Sequence[Host] = (),
    ) -> Gpu:
        """Start the plugin; a former one has ended."""
        for before in self.made:
            before.stop()
        access = {"visible_devices": "none", "cdi_folder": str(self.folder / "cdi")}
        config = {
            "driver_root": str(self.nvml.root),
            "poll": "50ms",
            "resources": [{"access": access, **one} for one in resources],
            **({} if wanted is None else {"limits": wanted}),
        }
        (self.folder / section).mkdir(exist_ok=True)
        given = host(self.folder / section, plugin=section, holders=self._holders, former=former)
        self.made.append(Gpu(GpuConfig.model_validate(config), given))
        self.made[-1]._limits.containers = lambda: Containers(logs=self.folder / "containers")
        self.made[-1].start()
        return self.made[-1]

    def _holders(self, resource: ResourceName) -> Sequence[Holding]:
        return [one for one in self.held if one.resource == resource]

    def listed(self, resource: ResourceName = MEM) -> Sequence[Device]:
        try:
            return self.made[-1].device_list(DeviceList(resource=resource))
        except NotFound:
            return ()

    def allocate(self, count: int, resource: ResourceName = MEM) -> Grant:
        """Allocate as kubelet does, which then reports it."""
        until(lambda: any(one.healthy for one in self.listed(resource)))
        devices = tuple(one for one in self.listed(resource) if one.healthy)[:count]
        ids = tuple(one.id for one in devices)
        granted = self.made[-1].device_allocate(DeviceAllocate(resource=resource, ids=ids, devices=devices))
        self.held.append(Holding(resource=resource, ids=ids, namespace="default", pod="web", container="main"))
        return granted

    @property
    def spec(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "cdi" / spec.FILE).read_bytes()))

    def container(self) -> tuple[str, int]:
        """Have a process in a cgroup of its own, as a runtime has before the program starts; return id and pid."""
        number = f"{len(self.sleepers):064x}"
        (self.folder / "containers" / f"web_default_main-{number}.log").touch()
        cgroup = self.cgroups.make()
        self.sleepers.append(subprocess.Popen(["sleep", "1000"]))
        (cgroup / "cgroup.procs").write_text(str(self.sleepers[-1].pid))
        return number, self.sleepers[-1].pid

    def start(self, granted: Grant, container: tuple[str, int]) -> subprocess.CompletedProcess[str]:
        """Do what the runtime does with the CDI names of a container: run the hook of each."""
        (name,) = granted.cdi
        (device,) = [one for one in self.spec["devices"] if name == f"{spec.KIND}={one['name']}"]
        (hook,) = device["containerEdits"]["hooks"]
        assert hook["hookName"] == "createRuntime"
        state = {"ociVersion": "1.0.2", "id": container[0], "status": "creating", "pid": container[1], "bundle": "/b"}
        return subprocess.run(
            hook["args"],
            executable=hook["path"],
            input=json.dumps(state),
            capture_output=True,
            text=True,
            env={},
            check=False,
            timeout=HANGS,
        )

    def cgroup(self, container: tuple[str, int]) -> str:
        lines = Path(f"/proc/{container[1]}/cgroup").read_text().splitlines()
        (path,) = [line[3:] for line in lines if line.startswith("0::")]
        return str(self.cgroups.root / path.lstrip("/"))

    def told(self) -> list[tuple[str, int | None]]:
        """What the document says of each container of the first card."""
        found = self.made[-1].inspect()["cards"][0]["containers"]
        return [(one["limits"], one["limit_bytes"]) for one in found]


def limit_keys(journal: Journal) -> list[str]:
    return [one.key for one in journal.entries() if one.phase == "limit"]


@pytest.fixture
def node(tmp_path: Path, nvml: Any, cgroups: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    nvml.state.version = b"615.71.09"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    paths: Callable[..., Any] = plugin_module._paths
    monkeypatch.setattr(plugin_module, "_paths", lambda *of: replace(paths(*of), cgroups=cgroups.root))
    made = Node(tmp_path, nvml, cgroups)
    yield made
    for plugin in made.made:
        plugin.stop()
    for sleeper in made.sleepers:
        sleeper.kill()
        sleeper.wait()


def test_a_container_starts_under_the_limit_of_its_units_and_the_document_says_so(node: Node) -> None:
    node.plugin()
    granted, container = node.allocate(3), node.container()
    assert granted.cdi == (f"nodeplug.io/gpu-limit={FIRST}.{3 * GIB}",)
    done = node.start(granted, container)
    assert (done.returncode, done.stderr) == (0, "")
    assert node.nvml.limits() == {node.cgroup(container): (0, 0, 3 * GIB)}
    until(lambda: node.told() == [("kernel", 3 * GIB)])


def test_a_container_that_starts_again_is_limited_again_in_its_new_cgroup(node: Node) -> None:
    node.plugin()
    granted = node.allocate(2)
    first, second = node.container(), node.container()
    for container in (first, second):
        assert node.start(granted, container).returncode == 0
    assert node.nvml.limits() == {node.cgroup(one): (0, 0, 2 * GIB) for one in (first, second)}


def test_what_holds_is_known_to_the_next_daemon(node: Node) -> None:
    node.plugin()
    granted, container = node.allocate(3), node.container()
    assert node.start(granted, container).returncode == 0
    node.plugin()
    until(lambda: node.told() == [("kernel", 3 * GIB)])
    assert node.start(granted, node.container()).returncode == 0


def test_a_limit_is_known_again_after_a_reboot_before_its_container_starts(node: Node) -> None:
    node.plugin()
    granted = node.allocate(3)
    (node.folder / "cdi" / spec.FILE).unlink()  # /var/run is empty after a boot
    node.plugin()
    assert [f"{spec.KIND}={one['name']}" for one in node.spec["devices"]] == list(granted.cdi)


def test_a_limit_outlives_a_section_of_another_name_and_a_reboot_after_it(node: Node) -> None:
    node.plugin()
    granted, former = node.allocate(3), host(node.folder / "host", plugin="host")
    node.plugin(section="renamed", former=[former])
    (node.folder / "cdi" / spec.FILE).unlink()
    node.plugin(section="renamed")
    assert [f"{spec.KIND}={one['name']}" for one in node.spec["devices"]] == list(granted.cdi)
    assert limit_keys(former.journal) == []


def test_a_limit_outlives_a_reboot_with_a_section_of_another_name(node: Node) -> None:
    node.plugin()
    granted, former = node.allocate(3), host(node.folder / "host", plugin="host")
    (node.folder / "cdi" / spec.FILE).unlink()
    node.plugin(section="renamed", former=[former])
    assert [f"{spec.KIND}={one['name']}" for one in node.spec["devices"]] == list(granted.cdi)


def test_a_container_of_a_section_of_another_name_is_limited_after_a_reboot_although_limits_are_off_now(
    node: Node,
) -> None:
    node.plugin()
    granted, former = node.allocate(3), host(node.folder / "host", plugin="host")
    (node.folder / "cdi" / spec.FILE).unlink()
    node.plugin(None, section="renamed", former=[former])
    container = node.container()
    assert node.start(granted, container).returncode == 0
    assert node.nvml.limits() == {node.cgroup(container): (0, 0, 3 * GIB)}


def test_a_limit_that_the_disk_refused_is_written_when_it_takes_it(node: Node) -> None:
    plugin = node.plugin()
    until(lambda: any(one.healthy for one in node.listed()))
    journal = plugin._host.journal
    if journal.folder.exists():
        journal.folder.rename(node.folder / "aside")
    journal.folder.touch()  # a file, where the folder should be made
    node.allocate(3)
    assert limit_keys(journal) == []
    journal.folder.unlink()
    until(lambda: limit_keys(journal) == [f"limit {FIRST} {3 * GIB}"])


def test_a_limit_that_ends_and_is_given_again_meanwhile_stays_in_the_journal(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin, removed = node.plugin(), threading.Event()
    remove, timeout = Journal.remove, allocations.CONFIRM_TIMEOUT
    again = threading.Thread(target=node.allocate, args=(3,), daemon=True)

    def racing(journal: Journal, key: str) -> None:
        if key.startswith("limit ") and not removed.is_set():
            monkeypatch.setattr(limits, "GRACE_PERIOD", 1e9)
            monkeypatch.setattr(allocations, "CONFIRM_TIMEOUT", timeout)
            again.start()
            again.join(1)  # it waits for this removal
            remove(journal, key)
            removed.set()
        else:
            remove(journal, key)

    node.allocate(3)
    monkeypatch.setattr(Journal, "remove", racing)
    monkeypatch.setattr(limits, "GRACE_PERIOD", 0.0)
    monkeypatch.setattr(allocations, "CONFIRM_TIMEOUT", 0.0)
    node.held.clear()
    assert removed.wait(60)
    again.join()
    assert limit_keys(plugin._host.journal) == [f"limit {FIRST} {3 * GIB}"]


def test_a_container_does_not_start_where_its_limit_is_required_and_cannot_be_set(node: Node) -> None:
    node.plugin()
    granted = node.allocate(3)
    node.nvml.fail(SET, 999)
    done = node.start(granted, node.container())
    why = f"{SET}: unknown error (NVML error 999)"
    assert done.returncode == 1
    assert done.stderr == f"nodeplug: the container's memory on {FIRST} cannot be limited: {why}\n"
    until(lambda: node.told() == [(f"none: {why}", None)])


def test_with_auto_the_same_container_starts_and_is_said_to_have_no_limit(node: Node) -> None:
    node.plugin("auto")
    granted = node.allocate(3)
    node.nvml.fail(SET, 999)
    done = node.start(granted, node.container())
    assert (done.returncode, "unknown error" in done.stderr) == (0, True)
    until(lambda: node.told() == [(f"none: {SET}: unknown error (NVML error 999)", None)])


@pytest.mark.parametrize(("wanted", "status"), [("kernel", 1), ("auto", 0)])
def test_without_the_daemon_a_container_starts_only_if_its_limit_is_not_required(
    node: Node, wanted: str, status: int
) -> None:
    plugin = node.plugin(wanted)
    granted = node.allocate(3)
    plugin.stop()
    done = node.start(granted, node.container())
    assert done.returncode == status
    assert "nodeplug does not run on this node" in done.stderr


@pytest.mark.parametrize(("wanted", "status"), [("kernel", 1), ("auto", 0)])
def test_a_daemon_that_takes_no_more_connections_does_not_keep_a_container_waiting(
    node: Node, wanted: str, status: int
) -> None:
    plugin = node.plugin(wanted)
    granted = node.allocate(3)
    plugin.stop()
    path = node.folder / "host/run/limits.sock"
    path.unlink()
    with ExitStack() as full:
        frozen = full.enter_context(socket.socket(socket.AF_UNIX))
        frozen.bind(str(path))
        frozen.listen(0)
        waiting = [full.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(9)]
        for one in waiting:
            one.setblocking(False)
        assert errno.EAGAIN in [one.connect_ex(str(path)) for one in waiting]
        done = node.start(granted, node.container())
    assert done.returncode == status
    assert "nodeplug hangs: the queue of its socket is full" in done.stderr


def test_the_runtime_waits_for_longer_than_the_hook_and_kubelet_for_longer_than_the_runtime(node: Node) -> None:
    node.plugin()
    node.allocate(3)
    (one,) = node.spec["devices"][0]["containerEdits"]["hooks"]
    assert hook._REFUSE_AFTER + hook._PATIENCE < one["timeout"] < 120


def test_a_container_whose_hook_never_ran_is_not_said_to_be_limited(node: Node) -> None:
    node.plugin()
    node.allocate(3)
    until(lambda: [words[:35] for words, _ in node.told()] == ["none: nodeplug's hook has not run: "])


def test_an_amount_that_was_never_allocated_is_not_set(node: Node) -> None:
    node.plugin()
    (name,), container = node.allocate(3).cdi, node.container()
    (hook,) = node.spec["devices"][0]["containerEdits"]["hooks"]
    words = [str(70 * GIB) if word == str(3 * GIB) else word for word in hook["args"]]
    state = json.dumps({"id": container[0], "pid": container[1]})
    done = subprocess.run(words, executable=hook["path"], input=state, capture_output=True, text=True, check=False)
    assert name.endswith(str(3 * GIB))
    assert done.returncode == 1
    assert f"{70 * GIB} bytes of {FIRST} were allocated to no container of this node" in done.stderr
    assert node.nvml.limits() == {}


def test_a_limit_is_not_raised_by_the_name_of_a_neighbours(node: Node) -> None:
    node.plugin()
    own, neighbours, container = node.allocate(2), node.allocate(12), node.container()
    assert node.start(own, container).returncode == 0
    done = node.start(neighbours, container)
    assert done.returncode == 1
    assert f"it has a limit of {2 * GIB} bytes, which is not raised to {12 * GIB}" in done.stderr
    node.nvml.fail(SET, 999)
    assert node.start(own, container).returncode == 1
    node.nvml.fail(SET, 0)
    assert node.start(neighbours, container).returncode == 1  # what failed has not been forgotten
    assert node.start(own, container).returncode == 0
    assert node.nvml.limits() == {node.cgroup(container): (0, 0, 2 * GIB)}


def test_a_limit_becomes_the_lower_one_of_two_names(node: Node) -> None:
    node.plugin()
    neighbours, own, container = node.allocate(12), node.allocate(2), node.container()
    assert [node.start(one, container).returncode for one in (neighbours, own)] == [0, 0]
    assert node.nvml.limits() == {node.cgroup(container): (0, 0, 2 * GIB)}


def test_of_two_requests_for_one_container_the_second_waits_for_the_first(tmp_path: Path) -> None:
    held, came = HeldLimits(tmp_path / "held"), threading.Event()
    seen: list[Held | None] = []

    def second() -> None:
        came.set()
        with held.alone("a", Uuid(FIRST)) as before:
            seen.append(before)

    asking = threading.Thread(target=second, daemon=True)
    with held.alone("a", Uuid(FIRST)):
        asking.start()
        came.wait()
        with held.alone("b", Uuid(FIRST)) as other:
            assert other is None
        held.put(first := Held("a", Uuid(FIRST), "/", GIB, GIB))
    asking.join()
    assert seen == [first]


def test_a_replica_is_limited_to_its_share_of_the_card(node: Node) -> None:
    node.plugin(resources=[REPLICAS])
    granted, container = node.allocate(1, SHARED), node.container()
    assert node.start(granted, container).returncode == 0
    assert node.nvml.limits() == {node.cgroup(container): (0, 0, 20 * GIB)}


@pytest.mark.parametrize(("wanted", "healthy"), [("kernel", False), ("auto", True)])
def test_a_replica_of_a_card_of_unknown_memory_is_not_said_to_be_limited(
    node: Node, wanted: str, healthy: bool
) -> None:
    node.nvml.state.card[0].total = 0
    plugin = node.plugin(wanted, [REPLICAS])
    why = "the driver does not tell how much memory it has, so a share of it is no amount"
    reason = f"limits = 'kernel', and containers can have no limit of its memory: {why}"
    until(
        lambda: [(one.healthy, one.reason) for one in node.listed(SHARED)] == [(healthy, "" if healthy else reason)] * 4
    )
    assert plugin.inspect()["cards"][0]["limits"] == f"none: {why}"


def test_a_limit_is_never_more_than_the_card_has(node: Node) -> None:
    node.plugin(resources=[MEMORY | {"oversubscribe": 2}])
    assert node.allocate(100).cdi == (f"nodeplug.io/gpu-limit={FIRST}.{80 * GIB}",)


def test_where_limits_are_required_a_card_of_an_old_driver_is_not_allocatable_and_says_why(node: Node) -> None:
    node.nvml.install(hidden=[SET])
    plugin = node.plugin()
    why = f"limits = 'kernel', and containers can have no limit of its memory: the driver does not have {SET}; R615 and"
    until(lambda: [one.reason.startswith(why) for one in node.listed()] == [True] * 80)
    unit = node.listed()[0]
    with pytest.raises(NotReady, match="cannot be allocated: limits = 'kernel'"):
        plugin.device_allocate(DeviceAllocate(resource=MEM, ids=(unit.id,), devices=(unit,)))


def test_with_auto_a_card_of_an_old_driver_is_allocated_without_a_limit_and_says_why(node: Node) -> None:
    node.nvml.install(hidden=[SET])
    plugin = node.plugin("auto")
    assert node.allocate(3).cdi == ()
    assert plugin.inspect()["cards"][0]["limits"].startswith(f"none: the driver does not have {SET}; R615")


def test_in_a_pod_without_node_root_none_are_given_and_what_was_given_before_holds(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.plugin("auto")
    granted, container = node.allocate(3), node.container()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    plugin = node.plugin("auto")
    assert node.allocate(2).cdi == ()
    why = plugin.inspect()["cards"][0]["limits"]
    assert why.startswith("none: its hook needs /usr/bin/python3 on the node")
    assert why.endswith("set node_root to where it is mounted")
    assert node.start(granted, container).returncode == 0
    assert node.nvml.limits() == {node.cgroup(container): (0, 0, 3 * GIB)}


def test_limits_that_were_given_hold_for_restarts_after_the_configuration_wants_none(node: Node) -> None:
    node.plugin()
    granted = node.allocate(3)
    node.plugin(None)
    container = node.container()
    assert node.start(granted, container).returncode == 0
    assert node.nvml.limits() == {node.cgroup(container): (0, 0, 3 * GIB)}


def test_a_socket_that_somebody_has_removed_is_there_again(node: Node) -> None:
    node.plugin()
    granted = node.allocate(3)
    (node.folder / "host/run/limits.sock").unlink()
    assert node.start(granted, node.container()).returncode == 0


def test_a_card_that_nobody_holds_any_more_leaves_no_limit_behind(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRACE_PERIOD", 0.0)
    node.plugin()
    node.allocate(3)
    assert len(node.spec["devices"]) == 1
    node.held.clear()
    monkeypatch.setattr(allocations, "CONFIRM_TIMEOUT", 0.0)
    until(lambda: not (node.folder / "cdi" / spec.FILE).exists())


@pytest.mark.parametrize(
    "said",
    [
        b"\n",
        b"[" * 60000 + b"\n",
        b'{"container": "a"}\n',
        b'{"container": "a", "cgroup": "/a", "card": "GPU-1", "bytes": "1"}\n',
        b'{"container": "a", "cgroup": "/a", "card": "", "bytes": 1}\n',
        b"x" * 70000,
    ],
)
def test_what_is_no_request_is_answered_with_a_sentence(node: Node, said: bytes) -> None:
    node.plugin()
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(node.folder / "host/run/limits.sock"))
        asking.sendall(said)
        error = json.loads(asking.recv(65536))["error"]
    assert error.startswith(("the request cannot be read: ", "the request has no end"))


def test_nobody_but_root_may_ask() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        door = Door(Path(folder) / "s", lambda _request: "")
        door.open()
        try:
            assert door.path.stat().st_mode & 0o777 == 0o600
            door.path.chmod(0o666)
            code = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({folder + '/s'!r}); print(s.recv(999))"
            command = ["/usr/bin/python3", "-IS", "-c", code]
            done = subprocess.run(command, user=65534, cwd="/", capture_output=True, text=True, check=True)
        finally:
            door.close()
    assert "user 65534 may not ask, root may" in done.stdout


def test_the_hook_needs_no_later_python_than_3_7() -> None:
    ast.parse(spec.SOURCE, feature_version=(3, 7))


def test_nothing_of_limits_is_there_where_nobody_asks_for_them(node: Node) -> None:
    node.plugin(None)
    assert node.allocate(3).cdi == ()
    assert not (node.folder / "cdi").exists()
    assert not (node.folder / "host/run/limits.sock").exists()
    assert node.nvml.calls(SET) == 0
