"""Every bundled plugin, and every plugin of the documentation, keeps every rule that applies to it."""

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
PROGRAMS: Final = {
    "loopfile": [pytest.mark.programs("mkfs.ext4", "e2fsck", "resize2fs")],
    "image": [pytest.mark.programs(MAKER)],
}
WHOLE: Final = dict.fromkeys(("bridge", "tmpfs", "gpu-extender"), pytest.mark.whole)
"""A plugin for networks, volumes and pods; all others, which cost more, are in the suite soak."""
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
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an image that is made when its test runs."""
    return tmp_path_factory.mktemp("images").resolve()


@pytest.fixture
def has_images(has_loop_devices: None, images: Path) -> None:
    subprocess.run([MAKER, EXAMPLES, images / "data.squashfs", "-quiet", "-no-progress"], check=True)


@pytest.fixture(scope="module")
def _path(images: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        patch.setitem(IMAGE["config"]["roots"]["data"], "path", str(images))
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
    if "threaded" in params:
        return {"plugin": params["threaded"], "isolation": "thread"}
    if params["plugin"] == "image":
        return {"plugin": "image", **IMAGE}
    return {"plugin": params["plugin"], **DOCUMENTED.get(params["plugin"], {}), **NETWORKS.get(params["plugin"], {})}


@pytest.mark.whole
@pytest.mark.parametrize(
    "threaded", ["loopback", pytest.param("hostdev", marks=pytest.mark.soak), "tmpfs", "gpu-extender"]
)
def test_a_bundled_plugin_of_each_style_keeps_every_rule_as_a_thread(threaded: str, report: Report) -> None:
    assert report.plugin == threaded
    report.check()


@pytest.mark.parametrize(
    "plugin",
    [
        pytest.param(plugin, marks=[WHOLE.get(plugin, pytest.mark.soak), *PROGRAMS.get(plugin, ())])
        for plugin in [*BUNDLED, "gpu"]
    ],
)
def test_a_bundled_plugin_keeps_every_rule(plugin: str, report: Report) -> None:
    assert report.plugin == plugin
    report.check()


@pytest.mark.soak
@pytest.mark.parametrize("sharing", SHARINGS)
def test_every_way_to_share_a_card_keeps_every_rule(sharing: str, report: Report) -> None:
    report.check()
    assert report["one-device-is-granted"].seen.startswith(
        SHARINGS[sharing][0][0].get("resource", "aliyun.com/gpu-mem")
    )


@pytest.mark.whole
@pytest.mark.parametrize("plugin", DOCUMENTED)
def test_a_documented_plugin_keeps_every_rule(plugin: str, report: Report) -> None:
    assert report.plugin == plugin
    report.check()
