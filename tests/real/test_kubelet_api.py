"""kubelet with an API server: two networks, Secrets, and what the node offers.

The API server is a stand-in in memory; kubelet, containerd and the daemon are the real ones.
"""

import base64
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.real.consumers import ApiServer, Lab

RESOURCE = "example.com/widget"
ONE = {RESOURCE: 1}
GROUP = 4242
PASSWORD = "correct horse battery staple"
ENCODED = base64.b64encode(PASSWORD.encode()).decode()
NETWORKS = Path(__file__).parent / "networks"
Volumes = dict[str, dict[str, Any]]
Difference = Callable[[], list[str]]


@pytest.fixture(scope="module")
def lab(make_kubelet_lab: Callable[..., AbstractContextManager[Lab]]) -> Iterator[Lab]:
    with make_kubelet_lab(*sorted(NETWORKS.glob("*.conflist")), with_api=True) as made:
        yield made


@pytest.fixture(scope="module")
def api(lab: Lab) -> ApiServer:
    assert lab.api is not None
    return lab.api


def offered(lab: Lab, api: ApiServer) -> tuple[str, str]:
    """Return capacity and allocatable of the resource, as kubelet reported them."""
    node = api.get("nodes", lab.private.name, "")
    assert node is not None
    return node["status"]["capacity"][RESOURCE], node["status"]["allocatable"][RESOURCE]


def wait_until_offered(lab: Lab, api: ApiServer, capacity: str, allocatable: str) -> None:
    lab.kubelet.wait_for(f"{allocatable} of {capacity}", lambda: offered(lab, api) == (capacity, allocatable))


def with_secrets(api: ApiServer, volumes: Volumes) -> Volumes:
    """Add a reference to a Secret of each driver's own type: kubelet hands no other to a FlexVolume."""
    found = {}
    for path, volume in volumes.items():
        driver = volume["flexVolume"]["driver"]
        name = driver.replace("/", "-")
        secret = {"metadata": {"name": name, "namespace": "default"}, "type": driver, "data": {"password": ENCODED}}
        api.put("secrets", secret)
        found[path] = {"flexVolume": {**volume["flexVolume"], "secretRef": {"name": name}}}
    return found


def test_a_pod_gets_device_networks_and_volumes_with_secrets_and_its_successor_finds_the_data(
    lab: Lab, api: ApiServer, difference: Difference, volumes: Volumes
) -> None:
    secret = with_secrets(api, volumes)
    lab.run("whole", "echo kept > /data/file", limits=ONE, volumes=secret, fs_group=GROUP)
    assert len(lab.devices_of("whole")) == 1
    shown = lab.kubelet.execute("whole", "/bin/ip", "-o", "address")
    assert all(f"inet {network}" in shown for network in ("10.91.0.", "10.92.0.", "10.93.0."))
    assert (lab.mount_type("whole", "/data"), lab.mount_type("whole", "/memory")) == ("ext4", "tmpfs")
    owners = lab.kubelet.execute("whole", "/bin/stat", "-c", "%g", "/data", "/memory").split()
    assert owners == [str(GROUP), str(GROUP)]
    lab.kubelet.drop("whole")
    lab.run("successor", limits=ONE, volumes=secret, fs_group=GROUP)
    assert lab.kubelet.execute("successor", "/bin/cat", "/data/file") == "kept\n"
    assert difference() == []


def test_a_secret_reaches_the_plugin_and_is_written_nowhere(
    lab: Lab, api: ApiServer, difference: Difference, volumes: Volumes
) -> None:
    lab.run("quiet", volumes=with_secrets(api, volumes))
    told = sorted(path.read_text() for path in lab.folder.glob("secrets-of-quiet-*"))
    assert told == [f'{{"password": "{PASSWORD}"}}'] * 2
    paths = lab.daemon.paths
    folders = (paths.state, paths.run, lab.daemon.log_path, lab.private.folder / "var/lib/cni")
    grep = ["grep", "--recursive", "--files-with-matches", "--devices=skip", "-e", PASSWORD, "-e", ENCODED]
    assert subprocess.run([*grep, *map(str, folders)], capture_output=True, text=True, check=False).stdout == ""
    assert PASSWORD not in str(lab.daemon.status())
    assert difference() == []


def test_what_the_node_offers_follows_the_health_of_its_devices(
    lab: Lab, api: ApiServer, difference: Difference
) -> None:
    wait_until_offered(lab, api, "2", "2")
    lab.run("holding", limits=ONE)
    container, (device,) = lab.kubelet.container("holding"), lab.devices_of("holding")
    here, away = lab.folder / "dev" / device, lab.folder / device
    here.rename(away)
    wait_until_offered(lab, api, "2", "1")
    lab.put("second", limits=ONE)
    lab.kubelet.running("second")
    lab.put("third", limits=ONE)
    assert "widget" in lab.kubelet.failed("third")
    away.rename(here)
    wait_until_offered(lab, api, "2", "2")
    assert lab.kubelet.container("holding") == container
    assert lab.devices_of("holding") == [device]
    assert difference() == []


def test_the_node_offers_nothing_while_the_daemon_is_away_and_all_at_its_return(lab: Lab, api: ApiServer) -> None:
    wait_until_offered(lab, api, "2", "2")
    lab.daemon.kill()
    wait_until_offered(lab, api, "2", "0")
    lab.daemon.start()
    wait_until_offered(lab, api, "2", "2")


def test_reloads_of_the_device_plugin_take_nothing_off_what_the_node_offers(
    lab: Lab, api: ApiServer, plugins_of: Callable[[Lab], str]
) -> None:
    wait_until_offered(lab, api, "2", "2")
    before, plugins = len(api.store.changes), plugins_of(lab)
    for number in range(5):
        changed = plugins.replace("groups = ", f'env = {{ WIDGET = "{number}" }}\ngroups = ')
        reloads = lab.daemon.log.count("configuration reloaded")
        lab.daemon.configure(changed)
        lab.kubelet.wait_for("a reload", lambda: lab.daemon.log.count("configuration reloaded") > reloads)  # noqa: B023 - at once
    time.sleep(2.0)  # kubelet looks once a second
    reported = [node for _, (kind, *_), node in api.store.changes[before:] if kind == "nodes"]
    assert {node["status"]["allocatable"][RESOURCE] for node in reported} <= {"2"}
    lab.daemon.configure(plugins)
