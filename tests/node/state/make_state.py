"""Record the state that this version of nodeplug leaves on a node where the daemon was killed.

    python -m tests.node.state.make_state

from the root of a checkout, as root, with loop devices. It writes `<version>/{network,volumes,devices}` beside itself,
see `tree.py`, and refuses a version that is recorded already: what was out there does not change. Each part is a node
of its own in namespaces of its own, with the project's stand-ins for runtime, kubelet and MPS:

- network: two running pods on a bridge with addresses of both families and masquerading, a third with an address of a
  foreign IPAM plugin, and the DEL of a fourth, which an entrypoint kept while no daemon was there: its network
  namespace is gone.
- volumes: a loop file with two pods, a tmpfs, a directory of the host, a volume named with a mark of its secrets, one
  that kubelet attached, one whose daemon was killed between the intent and the mount, and one whose daemon was killed
  between the intent and the unmount.
- devices: device nodes, and units and a replica of simulated cards, one of them with an MPS daemon, held by pods.

Owns: what those nodes are, and which values of a machine become placeholders.
Refuses: to be run by tests: with a later version it would record another state under another name.
"""

import json
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from ipaddress import ip_interface
from pathlib import Path
from typing import Any, Final

from pyroute2 import IPRoute
from tests.gpu.mps.conftest import CONTROL, SMI
from tests.node.state import tree

from nodeplug import Pod
from nodeplug.contract.journal import read_boot_id
from nodeplug.contract.mounts import mounts
from nodeplug.install.scripts import default_interpreter
from nodeplug.testing import (
    BlockingKubelet,
    CniRuntime,
    FlexCaller,
    FlexFailure,
    FlexVolume,
    Sandbox,
    ScratchNode,
    folders,
    namespaces,
)
from nodeplug.testing.kubelet.ledger import ContainerKey, DeviceAllocateInfo
from nodeplug.testing.scratch_cni import run_in
from nodeplug.testing.waiting import until
from nodeplug_gpu.mps.record import recorded
from nodeplug_net.attachment import Attachment
from nodeplug_net.nftables import encoding as nftables
from nodeplug_net.nftables import masquerade_messages as nft

HERE: Final = Path(__file__).parent
SUPERVISOR: Final = """\
node_name = "node-1"
listen = ""
install = true
native_entrypoints = false
device_poll = "200ms"
podresources_poll = "200ms"
"""
NETWORK: Final = """\
[plugins.bridge.config]
data_dir = "{root}/var/lib/cni/networks"

[plugins.loopback]
"""
BRIDGE: Final = {"type": "nodeplug-bridge", "isDefaultGateway": True, "ipMasq": True}
IPAM: Final = {"type": "host-local", "ranges": [[{"subnet": "10.87.0.0/24"}], [{"subnet": "fd00:87::/64"}]]}
NETWORKS: Final = {
    "pods": {**BRIDGE, "bridge": "np-state0", "ipam": IPAM},
    "foreign": {**BRIDGE, "bridge": "np-state1", "ipam": {"type": "example-ipam"}},
}
PODS: Final = {"c1": "pods", "c2": "pods", "c3": "pods", "f1": "foreign"}
FOREIGN: Final = """\
#!/bin/sh
# A foreign IPAM plugin, as small as can be: the same address for whoever asks.
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.1.0","ips":[{"address":"10.86.0.2/24","gateway":"10.86.0.1"}]}'
exit 0
"""
VOLUMES: Final = """\
[plugins.tmpfs]

[plugins.hostdir.config.roots.data]
path = "{root}/srv/data"
create = true

[plugins.loopfile]

[plugins.shares]
uses = "shares:Shares"
config = { folder = "{root}/srv" }

[plugins.disks]
uses = "shares:Disks"
"""
DEVICES: Final = """\
[plugins.hostdev]
[[plugins.hostdev.config.resources]]
resource = "example.com/null"
groups = [{ count = 4, nodes = [{ path = "/dev/null" }] }]

[plugins.gpu.config]
driver = "simulated"
poll = "50ms"
driver_root = "{root}/driver"
simulated = [{ memory = "8Gi", count = 2 }]
[[plugins.gpu.config.resources]]
sharing = "memory"
cards = { index = [0] }
mps = {}
[[plugins.gpu.config.resources]]
resource = "example.com/gpu-replica"
sharing = "replicas"
replicas = 4
cards = { index = [1] }
"""
HELD: Final = {
    ("trainer", "aliyun.com/gpu-mem"): 3,
    ("server", "aliyun.com/gpu-mem"): 2,
    ("notebook", "example.com/gpu-replica"): 1,
    ("reader", "example.com/null"): 2,
}
OFFERED: Final = {"aliyun.com/gpu-mem": 8, "example.com/gpu-replica": 4, "example.com/null": 4}
LEFT_OUT: Final = re.compile(
    r"daemon\.log|driver(/.*)?|run/netns/.*|.*\.img|srv/(hold-.*|released)|.*/lock\.tmp"
    r"|var/lib/kubelet/(pod-resources|plugins_registry)(/.*)?"
    r"|var/lib/kubelet/device-plugins/(kubelet\.sock|kubelet_internal_checkpoint)|run/nodeplug/plugins/gpu/mps/[^/]*/pipe/.*"
)
"""What is not nodeplug's (log, kubelet, runtime, driver), or no text: tests make the images of loop files."""


@contextmanager
def a_node(plugins: str) -> Iterator[ScratchNode]:
    """Run a daemon in a folder and namespaces of its own; whatever is mounted there goes at the end."""
    root = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    search = os.pathsep.join([*(str(HERE.parents[2] / name) for name in ("supervisor", "plugins")), str(HERE)])
    with ExitStack() as stack:
        stack.callback(folders.remove, root)
        stack.callback(folders.unmount_below, root)
        for name in ("run/netns", "srv/data", "var/lib/kubelet/device-plugins", "etc/cni/net.d"):
            (root / name).mkdir(parents=True)
        for name, text in (("nvidia-cuda-mps-control", CONTROL), ("nvidia-smi", SMI)):
            program = root / "driver/usr/bin" / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(text)
            program.chmod(0o755)
        text = plugins.replace("{root}", str(root))
        node = ScratchNode(root, text, supervisor=SUPERVISOR, env={"PYTHONPATH": search})
        stack.callback(_end_mps, root)
        stack.callback(node.stop)
        yield node


def _end_mps(root: Path) -> None:
    """End the MPS daemons that nodeplug leaves to their clients."""
    for record in root.rglob("daemon.json"):
        if (pid := recorded(record)) is not None:
            os.kill(pid, signal.SIGKILL)


def save(node: ScratchNode, into: Path, kernel: Mapping[str, Any]) -> None:
    """Write what the killed daemon left."""
    root = str(node.root)
    folders.unmount_below(node.root)
    known = {root: "@ROOT@", read_boot_id(): "@BOOT_ID@", str(default_interpreter()): "@PYTHON@"}
    tree.save(node.root, into, known, LEFT_OUT)
    text = json.dumps(kernel, indent=1).replace(root, "@ROOT@") + "\n"
    (into / tree.KERNEL).write_text(text)
    for path in into.glob("var/lib/nodeplug/installed.json"):
        path.write_text(re.sub(r'"@ROOT@/([^"]+)": "[0-9a-f]{64}"', r'"@ROOT@/\1": "@SHA256:\1@"', path.read_text()))
    for path in into.glob("run/nodeplug/attachments/*.json"):
        path.write_text(_without_numbers(path.read_text()))
    for path in into.glob("run/nodeplug/plugins/gpu/mps/*/daemon.json"):
        text = re.sub(r'"pid": \d+', '"pid": @MPS_PID@', path.read_text())
        path.write_text(re.sub(r'"started": "\d+"', '"started": "@MPS_STARTED@"', text))


def _without_numbers(text: str) -> str:
    name = json.loads(text.replace("@", ""))["container_id"]
    host, own = "@HOST_DEV@, @HOST_INO@", f"@HOST_COOKIE@, @COOKIE:{name}@, @NSID:{name}@, @MOMENT@"
    text = re.sub(r'"host": \[\d+, \d+\]', f'"host": [{host}]', text)
    return re.sub(r'"sighting": \[\d+, \d+, \d+, [\d.]+, ', f'"sighting": [{own}, ', text)


# --- network


def network(into: Path) -> None:
    """Three running pods, and a fourth whose DEL came while the daemon was away."""
    with a_node(NETWORK) as node:
        foreign = node.root / "opt/cni/bin/example-ipam"
        foreign.parent.mkdir(parents=True)
        foreign.write_text(FOREIGN)
        foreign.chmod(0o755)
        node.start()
        runtimes = {name: _runtime(node, name) for name in NETWORKS}
        pods = {name: Sandbox(node.root / "run/netns" / name) for name in PODS}
        for name, of in PODS.items():
            runtimes[of].add(name, pods[name].path, args=f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}")
        results = {one.container_id: one.result for runtime in runtimes.values() for one in runtime.cache.all()}
        node.kill()
        runtimes["pods"].delete("c3", pods["c3"].path)
        kernel = {
            "bridges": [_link(str(config["bridge"])) for config in NETWORKS.values()],
            "pods": {name: _pod(pods[name], results[name]) for name in PODS if name != "c3"},
            "nftables": _nftables(results),
        }
        for pod in pods.values():
            pod.close()
        save(node, into, kernel)


def _runtime(node: ScratchNode, name: str) -> CniRuntime:
    conflist = {"cniVersion": "1.1.0", "name": name, "plugins": [NETWORKS[name]]}
    (node.root / f"etc/cni/net.d/{name}.conflist").write_text(json.dumps(conflist, indent=1) + "\n")
    return CniRuntime(conflist, [node.paths.cni_bin], cache_dir=node.root / "var/lib/cni")


def _pod(pod: Sandbox, result: Mapping[str, Any]) -> dict[str, Any]:
    bridge, outside, _ = (one["name"] for one in result["interfaces"])
    inside = run_in(pod.netns, lambda: _link("eth0"))
    return {"netns": str(pod.path), "bridge": bridge, "host": _link(outside), "inside": inside}


def _link(name: str) -> dict[str, Any]:
    with IPRoute() as route:
        index = route.link_lookup(ifname=name)[0]
        link = dict(route.get_links(index)[0]["attrs"])
        addresses = [(dict(one["attrs"])["IFA_ADDRESS"], one["prefixlen"]) for one in route.get_addr(index=index)]
        routes = [
            [own.get("RTA_DST", "default"), one["dst_len"], own["RTA_GATEWAY"]]
            for one in (*route.get_routes(family=2, table=254), *route.get_routes(family=10, table=254))
            if (own := dict(one["attrs"])).get("RTA_OIF") == index and "RTA_GATEWAY" in own
        ]
    return {
        "name": name,
        "mac": link["IFLA_ADDRESS"],
        "alias": link.get("IFLA_IFALIAS", ""),
        "addresses": [f"{address}/{length}" for address, length in addresses if not address.startswith("fe80")],
        "routes": routes,
    }


def _nftables(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the messages of one transaction that makes the table as it was, in hexadecimal digits."""
    owned = [
        (ip_interface(ip["address"]), Attachment(PODS[name], name, "eth0").label)
        for name, result in results.items()
        for ip in result["ips"]
    ]
    networks = list(dict.fromkeys(address.network for address, _ in owned))
    elements = [nft.new_element(address.network, address.packed, label) for address, label in owned]
    return [bytes(one).hex() for one in (nftables.begin(None), *nft.rebuild(networks), *elements, nftables.end())]


# --- volumes


def volumes(into: Path) -> None:
    """What pods have mounted, and one mount that the daemon did not live to make."""
    with a_node(VOLUMES) as node:
        node.start()

        def mount(driver: str, uid: str, volume: FlexVolume) -> None:
            FlexCaller(node.paths.flexvolume, node.root / "var/lib/kubelet", driver).mount(_named(uid), volume)

        mount("nodeplug/loopfile", "pod-a", FlexVolume("data", {"name": "data", "size": "4Mi"}))
        mount("nodeplug/loopfile", "pod-b", FlexVolume("data", {"name": "data", "size": "4Mi"}, read_only=True))
        mount("nodeplug/tmpfs", "pod-a", FlexVolume("scratch", {"size": "4Mi"}))
        mount("nodeplug/hostdir", "pod-b", FlexVolume("logs", {"path": "logs", "create": "true"}))
        mount("example.com/share", "pod-c", FlexVolume("share", {"host": "files"}, {"password": b"secret"}))
        mount("example.com/disk", "pod-c", FlexVolume("disk", {"name": "disk-1"}))
        mount("example.com/share", "pod-e", FlexVolume("ending", {"host": "old"}))
        for step in ("stage", "unpublish"):
            (node.root / f"srv/hold-{step}").touch()
        half = FlexVolume("half", {"host": "slow"})
        caller = FlexCaller(node.paths.flexvolume, node.root / "var/lib/kubelet", "example.com/share")
        begun = [lambda: mount("example.com/share", "pod-d", half), lambda: caller.unmount(_named("pod-e"), "ending")]
        threads = [threading.Thread(target=_failing, args=(step,)) for step in begun]
        for thread in threads:
            thread.start()
        journal = node.paths.journal / "flexvolume"
        for phase in ("staging", "unpublishing"):
            until(lambda: any(f'"phase": "{phase}"' in path.read_text() for path in journal.glob("*.json")))  # noqa: B023
        node.kill()
        for thread in threads:
            thread.join()
        save(node, into, {"mounts": _mounts(node.root)})


def _named(uid: str) -> Pod:
    return Pod(name=uid, namespace="default", uid=uid)


def _failing(step: Callable[[], object]) -> None:
    with suppress(FlexFailure):
        step()


def _mounts(root: Path) -> list[dict[str, Any]]:
    """Say how each mount below the root can be made again, in their order."""
    made: list[dict[str, Any]] = []
    first: dict[str, str] = {}
    for one in mounts():
        if not Path(one.target).is_relative_to(root) or one.fs_type == "nsfs":
            continue
        mount = {"at": one.target, "read_only": one.read_only}
        if one.device in first:
            made.append({"kind": "bind", "from": first[one.device], **mount})
        elif str(root) in one.root:
            made.append({"kind": "bind", "from": str(root) + one.root.partition(str(root))[2], **mount})
        elif one.fs_type == "tmpfs":
            made.append({"kind": "tmpfs", **mount})
        else:
            backing = Path("/sys/block", Path(one.source).name, "loop/backing_file").read_text().strip()
            made.append({"kind": one.fs_type, "from": backing, "bytes": Path(backing).stat().st_size, **mount})
        first.setdefault(one.device, one.target if str(root) not in one.root else "")
    return made


# --- devices


def devices(into: Path) -> None:
    """What pods hold of device nodes and cards."""
    with a_node(DEVICES) as node, BlockingKubelet(node.root / "var/lib/kubelet") as kubelet:
        node.start()
        for resource, count in OFFERED.items():
            kubelet.until_allocatable(resource, count)
        for (pod, resource), count in HELD.items():
            kubelet.admit(pod, {resource: count})
        until(lambda: sum(one["allocated"] - one["unconfirmed"] for one in node.status()["resources"]) == 8)
        until(lambda: len(json.loads((node.paths.state / "holders.json").read_text())["holders"]) == len(HELD))
        node.kill()
        held = [_held(key, resource, entry) for (key, resource), entry in kubelet.stand_in.ledger.entries.items()]
        kubelet.close()
        save(node, into, {"held": held, "mounts": _mounts(node.root)})


def _held(key: ContainerKey, resource: str, entry: DeviceAllocateInfo) -> dict[str, Any]:
    """Say what a container has: kubelet gives it the same again whenever it starts anew."""
    return {
        "pod": key.pod,
        "container": key.container,
        "resource": resource,
        "ids": sorted(entry.ids),
        "mounts": sorted(one.host_path for one in entry.response.mounts),
    }


def main() -> None:
    """Record this version, unless it is."""
    into = HERE / version("nodeplug")
    if into.exists():
        raise SystemExit(f"{into} is recorded: what that version left on nodes does not change")
    namespaces.enter(network=True)
    with IPRoute() as route:
        route.link("set", index=route.link_lookup(ifname="lo")[0], state="up")
    for part in (network, volumes, devices):
        part(into / part.__name__)
        sys.stdout.write(f"{into / part.__name__}\n")


if __name__ == "__main__":
    main()
