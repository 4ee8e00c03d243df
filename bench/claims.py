"""From a claim to its volume, beside the standard provisioner: `python -m bench.claims`.

As root, with what `make consumers` builds and etcd: a real API server with its controllers. One daemon serves two
drivers of `loopfile`; for one it provisions itself, for the other the standard external-provisioner does, and a claim
of each is made in turn, on a node that is written into it as the scheduler would. Also: what five drivers and the
provisioner, each with a class, a bound claim and a volume under a pod, add to the daemon's memory, and a volume from
nothing to its mount over CSI. A whole run writes `bench/results/claims.json` and the tables of `docs/performance.md`.
"""

import argparse
import datetime as dt
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
from tests.real.consumers.control_plane import ControlPlane
from tests.real.consumers.ending import end
from tests.real.consumers.private_node import ENV, PrivateNode

from bench import page
from nodeplug import Pod
from nodeplug.contract.errors import PluginError
from nodeplug.observe.processes import usage
from nodeplug.pb import csi_v1_pb2 as pb
from nodeplug.pb import csi_v1_pb2_grpc as pb_grpc
from nodeplug.testing import CsiCaller, CsiVolume, ScratchNode, folders, forked
from nodeplug.testing.folders import unmount_below
from nodeplug.testing.waiting import until

ROOT: Final = Path(__file__).parents[1]
OURS, THEIRS = "ours.bench", "theirs.bench"
FIVE: Final = tuple(f"driver{number}.bench" for number in range(1, 6))
_CLAIMS: Final = "/api/v1/namespaces/default/persistentvolumeclaims"
_VOLUMES: Final = "/api/v1/persistentvolumes/"
_GIB: Final = 1 << 30


def main() -> int:
    """Parse, measure, tell."""
    parser = argparse.ArgumentParser(prog="bench.claims", description=__doc__)
    parser.add_argument("--pairs", type=int, default=15, help="how many claims of each")
    parser.add_argument("--quick", action="store_true", help="two of each: shows that it runs; writes no page")
    parser.add_argument("--where-built", action="store_true", help="measure nothing where the consumers are not built")
    arguments = parser.parse_args()
    try:
        programs = {name: built(name) for name in ("kubernetes", "provisioner")}
    except PluginError as error:
        print(f"no claims: {error.message}", file=sys.stderr)
        return 0 if arguments.where_built else 1
    figures: dict[str, Any] = {**_about(), "quick": arguments.quick}
    figures |= measure(programs["kubernetes"], programs["provisioner"], 2 if arguments.quick else arguments.pairs)
    page.keep("claims", figures)
    return 0


def _about() -> dict[str, Any]:
    kernel = platform.release().partition("-")[0]
    return {
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "kernel": kernel,
        "load_average": os.getloadavg()[0],
        "machine": f"{os.cpu_count()} CPUs, Linux {kernel}, Python {platform.python_version()}",
    }


def built(module: str) -> Path:
    """Return the folder of a module's programs, as `make consumers` built them; raise PluginError if it did not."""
    done = subprocess.run(
        [str(ROOT / ".ci" / "build-consumers"), "--cached", module], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise PluginError(done.stderr.strip())
    return Path(done.stdout.strip())


def measure(kubernetes: Path, provisioner: Path, pairs: int) -> dict[str, float]:
    """Make a cluster of its own and measure; return figures by name.

    Args:
        kubernetes: the folder of the control plane's programs.
        provisioner: the folder of the standard provisioner.
        pairs: how many claims of each are made.
    """
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp")).resolve()
    try:
        with _cluster(folder, kubernetes) as control:
            return _measure(control, provisioner / "csi-provisioner", pairs)
    finally:
        unmount_below(folder)
        folders.remove(folder)


@contextmanager
def _cluster(folder: Path, programs: Path) -> Iterator[ControlPlane]:
    (folder / "n").mkdir()
    (folder / "p").mkdir()
    with PrivateNode(folder / "n") as node, ControlPlane(node, folder / "p", programs) as control:
        forked.close_idle()  # memory that the daemon shared with such a process would count less
        yield control


def _plugins(folder: Path, drivers: Sequence[str]) -> str:
    """Return a section of `loopfile` for each driver, and that of a provisioner of all but the standard one's."""
    ours = json.dumps([driver for driver in drivers if driver != THEIRS])
    sections = [
        f'[plugins.{name}]\nuses = "loopfile"\n[plugins.{name}.config]\ndriver = "bench/{name}"\n'
        f'directory = "{folder}/{name}"\n'
        for name in (driver.partition(".")[0] for driver in drivers)
    ]
    return "".join(sections) + f'[provisioner]\nkubeconfig = "{folder.parent}/p/kubeconfig"\ndrivers = {ours}\n'


def _measure(control: ControlPlane, provisioner: Path, pairs: int) -> dict[str, float]:
    _announce(control, (OURS, THEIRS, *FIVE))
    with _daemon(control, "", csi=False) as daemon:
        figures = {"memory_without_mib": _settled(daemon.pid)}
    with _daemon(control, _plugins(control.node.folder, FIVE)) as daemon:
        _serve_one_of_each(control, daemon)
        figures["memory_with_mib"] = _settled(daemon.pid)
    figures["memory_more_mib"] = figures["memory_with_mib"] - figures["memory_without_mib"]
    plugins = _plugins(control.node.folder, (OURS, THEIRS))
    with _daemon(control, plugins) as daemon, _standard(control, daemon, provisioner) as standard:
        figures |= _bound(control, pairs)
        figures["standard_provisioner_mib"] = _settled(standard)
        figures |= _from_nothing(daemon, pairs)
    return figures


@contextmanager
def _daemon(control: ControlPlane, plugins: str, *, csi: bool = True) -> Iterator[ScratchNode]:
    supervisor = f'listen = ""\ncsi = {str(csi).lower()}\nnode_name = "{control.node.name}"'
    daemon = ScratchNode(control.node.folder, plugins, supervisor=supervisor, within=control.node.command())
    daemon.paths.plugins_registry.mkdir(parents=True, exist_ok=True)
    with daemon:
        yield daemon


def _serve_one_of_each(control: ControlPlane, daemon: ScratchNode) -> None:
    """Have a claim of each of the five drivers bound, and its volume under a pod, until the daemon ends."""
    for driver in FIVE:
        name = driver.partition(".")[0]
        _one(control, driver, name, keep=True)
        volume = control.call("GET", _VOLUMES + control.call("GET", f"{_CLAIMS}/{name}")["spec"]["volumeName"])
        source = volume["spec"]["csi"]
        caller = CsiCaller(daemon.paths.plugins_registry.parent, driver)
        attributes = dict(source.get("volumeAttributes") or {})
        caller.mount(Pod(uid=name), CsiVolume(name, attributes, handle=source["volumeHandle"], fs_type="ext4"))


def _settled(pid: int) -> float:
    """Return the Pss of a process that has settled, and of all that it has started, in MiB."""
    time.sleep(5.0)
    return sum(one.memory for one in usage(_family(pid)).values()) / (1 << 20)


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in _family(int(child)))]


def _announce(control: ControlPlane, names: Sequence[str]) -> None:
    """Tell the cluster of the node, and make a class for each driver, as an administrator and kubelet would."""
    name = control.node.name
    labels = {f"{driver}/node": name for driver in names}
    control.call("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
    drivers = [{"name": one, "nodeID": name, "topologyKeys": [f"{one}/node"]} for one in names]
    storage = "/apis/storage.k8s.io/v1"
    control.call("POST", f"{storage}/csinodes", {"metadata": {"name": name}, "spec": {"drivers": drivers}})
    for driver in names:
        more = {"provisioner": driver, "volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Delete"}
        control.call("POST", f"{storage}/storageclasses", {"metadata": {"name": driver}, **more})


@contextmanager
def _standard(control: ControlPlane, daemon: ScratchNode, program: Path) -> Iterator[int]:
    """Run the standard provisioner; yield the process id."""
    socket = daemon.paths.plugins_registry.parent / "plugins" / THEIRS / "csi.sock"
    until(socket.exists, 30)
    arguments = [
        *(f"--csi-address={socket}", f"--kubeconfig={control.folder}/kubeconfig", "--node-deployment=true"),
        *("--strict-topology=true", "--immediate-topology=false", "--timeout=110s"),
    ]
    variables = {"NODE_NAME": control.node.name, "NAMESPACE": "kube-system", "POD_NAME": "provisioner"}
    with (control.folder / "provisioner.log").open("wb") as log:
        command = control.node.command(str(program), *arguments)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**ENV, **variables})
    try:
        yield process.pid
    finally:
        end(process, 10)


def _bound(control: ControlPlane, pairs: int) -> dict[str, float]:
    """Return how long it takes from a claim to Bound, in turn."""
    series: dict[str, list[float]] = {OURS: [], THEIRS: []}
    for number in range(pairs + 1):
        for driver in (OURS, THEIRS):
            seconds = _one(control, driver, f"{driver.partition('.')[0]}-{number}")
            if number:  # the first of each warms up
                series[driver].append(seconds)
    ours, theirs = (statistics.median(series[one]) for one in (OURS, THEIRS))
    return {"claim_to_bound_s": ours, "standard_claim_to_bound_s": theirs, "claim_to_bound_ratio": ours / theirs}


def _one(control: ControlPlane, driver: str, name: str, *, keep: bool = False) -> float:
    annotations = {"volume.kubernetes.io/selected-node": control.node.name}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": driver,
        "resources": {"requests": {"storage": "32Mi"}},
    }
    started = time.perf_counter()
    control.call("POST", _CLAIMS, {"metadata": {"name": name, "annotations": annotations}, "spec": spec})
    while _phase(control, name) != "Bound":
        if time.perf_counter() - started > 60:
            raise PluginError(f"claim {name} was not bound in 60 s")
        time.sleep(0.01)
    seconds = time.perf_counter() - started
    if not keep:
        control.call("DELETE", f"{_CLAIMS}/{name}")
    return seconds


def _phase(control: ControlPlane, name: str) -> str:
    found: Mapping[str, Any] = control.call("GET", f"{_CLAIMS}/{name}")
    return str((found.get("status") or {}).get("phase"))


def _from_nothing(daemon: ScratchNode, times: int) -> dict[str, float]:
    """Return how long CreateVolume and the publish of it take together: xfs, 1 GiB."""
    caller = CsiCaller(daemon.paths.plugins_registry.parent, OURS)
    stub = pb_grpc.ControllerStub(grpc.insecure_channel(f"unix:{caller.register().endpoint}"))
    mode = pb.VolumeCapability.AccessMode(mode=pb.VolumeCapability.AccessMode.SINGLE_NODE_WRITER)
    capability = pb.VolumeCapability(mount=pb.VolumeCapability.MountVolume(fs_type="xfs"), access_mode=mode)
    seconds = []
    for number in range(times):
        pod, name = Pod(uid=f"p{number}"), f"nothing-{number}"
        started = time.perf_counter()
        request = pb.CreateVolumeRequest(
            name=name, volume_capabilities=[capability], capacity_range=pb.CapacityRange(required_bytes=_GIB)
        )
        made = stub.CreateVolume(request, timeout=60).volume
        caller.mount(pod, CsiVolume(name, dict(made.volume_context), handle=made.volume_id, fs_type="xfs"))
        seconds.append(time.perf_counter() - started)
        caller.unmount(pod, name)
        stub.DeleteVolume(pb.DeleteVolumeRequest(volume_id=made.volume_id), timeout=60)
    return {"volume_from_nothing_ms": statistics.median(seconds) * 1e3}


if __name__ == "__main__":
    if os.geteuid():
        sys.exit("the benchmark makes namespaces and mounts, and needs root")
    sys.exit(main())
