"""Every bundled plugin, and every plugin of the documentation, keeps every rule that applies to it."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from nodeplug.testing import Report

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
NETWORK = {"type": "example-wire", "ipam": {"type": "nodeplug-host-local", "subnet": "10.9.0.0/24"}}
DOCUMENTED: dict[str, dict[str, Any]] = {
    "fuse:Fuse": {},
    "wire:Wire": {"cni": NETWORK, "beside": {"host-local": {"config": {"data_dir": "{scratch}/addresses"}}}},
    "scratch:Scratch": {"config": {"size": "4m"}, "volume_options": {"name": "shared"}},
    "audit:Audit": {},
}
IMAGE: dict[str, Any] = {
    "config": {"roots": {"data": {"path": "{images}"}}, "max_overlay": "8Mi"},
    "volume_options": {"root": "data", "path": "data.squashfs"},
}
ADDRESSED = {"type": "nodeplug-tap", "ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}}
MAKER: Final = "mksquashfs"
NETWORKS: dict[str, dict[str, Any]] = {"tap": {"cni": ADDRESSED, "config": {"data_dir": "{scratch}/addresses"}}}
SHARINGS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "exclusive": ([{"sharing": "exclusive", "resource": "nvidia.com/gpu"}], {}),
    "replicas": ([{"sharing": "replicas", "resource": "nvidia.com/gpu.shared", "replicas": 4}], {}),
    "memory": ([{"sharing": "memory"}], {"memory": "3GiB"}),  # so few units that some sets fit on no card
    "mig": (
        [
            {
                "sharing": "mig",
                "strategy": "mixed",
                "resource": "nvidia.com/mig",
                "profiles": {"1g.10gb": "nvidia.com/mig-1g.10gb", "3g.40gb": "nvidia.com/mig-3g.40gb"},
            }
        ],
        {"memory": "80GiB", "mig": ["1g.10gb", "1g.10gb", "3g.40gb"]},
    ),
}


NEEDS: Final = {"loopfile": "has_loop_devices", "image": "has_images", "fuse:Fuse": "has_fuse"}
BUNDLED: Final = (
    "bridge",
    "ptp",
    "host-local",
    "static",
    "tap",
    "loopback",
    "portmap",
    "bandwidth",
    "sbr",
    "tuning",
    "firewall",
    "networks",
    "hostdev",
    "gpu-extender",
    "tmpfs",
    "loopfile",
    "hostdir",
    "image",
)


@pytest.fixture(scope="module")
def has_images(has_loop_devices: None) -> None:
    """Skip where no image can be made."""
    if shutil.which(MAKER) is None:
        pytest.skip(f"needs {MAKER} of the package squashfs-tools")


@pytest.fixture(scope="module")
def _path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        if shutil.which(MAKER) is not None:
            folder = tmp_path_factory.mktemp("images").resolve()
            subprocess.run([MAKER, EXAMPLES, folder / "data.squashfs", "-quiet", "-no-progress"], check=True)
            patch.setitem(IMAGE["config"]["roots"]["data"], "path", str(folder))
        yield


@pytest.fixture(autouse=True)
def _needed(request: pytest.FixtureRequest) -> None:
    fixture = NEEDS.get(request.node.callspec.params.get("plugin", ""))
    if fixture is not None:
        request.getfixturevalue(fixture)


def asked(params: dict[str, Any]) -> dict[str, Any]:
    """Say what the run for a test is asked for."""
    if "sharing" in params:
        resources, card = SHARINGS[params["sharing"]]
        config = {"driver": "simulated", "simulated": [{"count": 2, **card}], "resources": resources}
        return {"plugin": "gpu", "config": config}
    if params["plugin"] == "image":
        return {"plugin": "image", **IMAGE}
    return {"plugin": params["plugin"], **DOCUMENTED.get(params["plugin"], {}), **NETWORKS.get(params["plugin"], {})}


@pytest.mark.parametrize("plugin", [*BUNDLED, "gpu"])
def test_a_bundled_plugin_keeps_every_rule(plugin: str, report: Report) -> None:
    assert report.plugin == plugin
    report.check()


@pytest.mark.parametrize("sharing", SHARINGS)
def test_every_way_to_share_a_card_keeps_every_rule(sharing: str, report: Report) -> None:
    report.check()
    assert report["one-device-is-granted"].seen.startswith(
        SHARINGS[sharing][0][0].get("resource", "aliyun.com/gpu-mem")
    )


@pytest.mark.parametrize("plugin", DOCUMENTED)
def test_a_documented_plugin_keeps_every_rule(plugin: str, report: Report) -> None:
    assert report.plugin == plugin
    report.check()
