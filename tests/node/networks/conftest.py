"""A daemon that follows an API server that is acted out, and a runtime that attaches pods to it."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.node.acted_api import ActedApi

from nodeplug.testing import CniRuntime, Sandbox, ScratchNode, forked
from nodeplug.testing.scratch_cni import run_in
from nodeplug.testing.waiting import until
from nodeplug_net.netlink.links import Links, links_in

ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
SUPERVISOR = """
listen = ""
node_name = "node-1"
install = true
native_entrypoints = false
"""
PLUGINS = """
[plugins.bridge.config]
data_dir = "{root}/addresses"
[plugins.tuning]
[plugins.networks]
isolation = "{isolation}"
[plugins.networks.config]
conf_dir = "{root}/etc/cni/net.d"
[networks]
kubeconfig = "{root}/kubeconfig"
patience = "1s"
"""


def bridge(name: str, subnet: str, **more: Any) -> dict[str, Any]:
    """Return the configuration of a network of its own."""
    ipam = {"type": "host-local", "ranges": [[{"subnet": subnet}]]}
    keys = {"bridge": name, "isGateway": True, "ipam": ipam, **more}
    return {"cniVersion": "1.0.0", "name": name, "type": "nodeplug-bridge", **keys}


class Pods:
    """The daemon, its cluster, and pods of a runtime.

    Attributes:
        api: the cluster.
        node: the daemon.
        runtime: of the node's only configuration.
    """

    def __init__(self, api: ActedApi, node: ScratchNode, folder: Path, host: Sandbox) -> None:
        self.api, self.node, self.folder, self.host = api, node, folder, host
        plugin = {"type": "nodeplug-networks", "clusterNetwork": "pods", "capabilities": {ANNOTATIONS: True}}
        self.conflist = {"cniVersion": "1.1.0", "name": "all", "plugins": [plugin]}
        self.runtime = CniRuntime(self.conflist, [node.paths.cni_bin, folder], cache_dir=folder / "cache")

    def args(self, name: str, uid: str = "") -> str:
        found = self.api.get("pods", name, "default")
        known = uid or (found["metadata"]["uid"] if found else "u")
        return f"IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name};K8S_POD_UID={known}"

    def attach(self, name: str, pod: Sandbox, uid: str = "", told: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Attach a pod; `told` are annotations that the runtime passes on."""
        arguments = None if told is None else {ANNOTATIONS: dict(told)}
        with self.host.netns.entered():
            return self.runtime.attach(name, pod.path, args=self.args(name, uid), capability_args=arguments)

    def detach(self, name: str, pod: Sandbox | None) -> None:
        with self.host.netns.entered():
            self.runtime.detach(name, None if pod is None else pod.path)

    def check(self, name: str) -> None:
        with self.host.netns.entered():
            self.runtime.check(name)

    def status(self) -> None:
        with self.host.netns.entered():
            self.runtime.status()

    def gc(self, *valid: tuple[str, str]) -> None:
        """Call GC for a runtime that has forgotten all but what is valid."""
        self.runtime.cache.lose()
        with self.host.netns.entered():
            self.runtime.gc(valid)

    def links(self, pod: Sandbox) -> set[str]:
        with links_in(pod.netns) as links:
            return {link.name for link in links.all()} - {"lo"}

    def held(self) -> set[str]:
        """Return the addresses that are reserved."""
        files = (self.node.root / "addresses").glob("*/*")
        return {path.name for path in files if path.name[0].isdigit()}

    def records(self) -> list[str]:
        return [path.name for path in (self.node.paths.journal / "networks").glob("*.json")]

    def nothing_left(self, pod: Sandbox) -> None:
        assert (self.links(pod), self.held(), self.records()) == (set(), set(), [])

    def knows(self, name: str, namespace: str = "default") -> None:
        """Wait until the daemon keeps a definition for a start without an API server."""
        path = self.node.paths.state / "networks" / "definitions.json"
        until(lambda: path.exists() and f"{namespace}/{name}" in json.loads(path.read_text())["definitions"])


@contextmanager
def pods_on(folder: Path, isolation: str = "thread", more: str = "", path: str = "") -> Iterator[Pods]:
    """Run the daemon, with more of its configuration and another folder with plugins, if there is one."""
    root = folder / "n"
    (root / "etc" / "cni" / "net.d").mkdir(parents=True)
    (root / "etc" / "cni" / "net.d" / "20-pods.conflist").write_text(json.dumps(bridge("pods", "10.80.0.0/24")))
    with ActedApi() as api, Sandbox(folder / "host") as host:
        (root / "kubeconfig").write_text(api.kubeconfig)
        api.node(rack="a")
        toml = PLUGINS.format(root=root, isolation=isolation) + more
        env = {"PYTHONPATH": os.pathsep.join([*forked.search_path(), path])} if path else {}
        node = ScratchNode(root, toml, supervisor=SUPERVISOR, fork=True, env=env)
        with node:
            yield Pods(api, node, folder, host)
        print(node.log)  # noqa: T201 - shown when the test fails


@pytest.fixture
def pods(short_path: Path) -> Iterator[Pods]:
    with pods_on(short_path) as made:
        yield made


@pytest.fixture
def pod(short_path: Path) -> Iterator[Sandbox]:
    with Sandbox(short_path / "pod") as made:
        yield made


@pytest.fixture
def inside() -> Callable[[Sandbox, Callable[[Links], Any]], Any]:
    """Look into a pod."""

    def look(pod: Sandbox, question: Callable[[Links], Any]) -> Any:
        def ask() -> Any:
            with links_in(pod.netns) as links:
                return question(links)

        return run_in(pod.netns, ask)

    return look
