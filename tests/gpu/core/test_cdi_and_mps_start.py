"""What a plugin does until a CDI spec is written, or an MPS daemon has started: lists, health and allocations."""

import json
import os
from pathlib import Path

import pytest
from tests.gpu.core.gpu_node import MEM
from tests.gpu.core.gpu_plugins import MEMORY, GpuPlugins, devices

from nodeplug import (
    DeviceAllocate,
    DeviceList,
    NotReady,
)
from nodeplug.testing import folders
from nodeplug.testing.waiting import until
from nodeplug_gpu.plugin import Gpu


def _listed(plugin: Gpu) -> bool:
    try:
        return bool(plugin.device_list(DeviceList(resource=MEM)))
    except NotReady:
        return False


@pytest.mark.node
def test_the_first_list_of_cards_with_mps_waits_for_their_daemons_so_that_it_is_healthy(
    plugins: GpuPlugins, tmp_path: Path
) -> None:
    programs = tmp_path / "driver" / "usr" / "bin"
    programs.mkdir(parents=True)
    asked = tmp_path / "asked"
    control = f"""#!/bin/sh
[ "$1" = -f ] || {{ echo 100.0; exit 0; }}
until [ -e {asked} ]; do sleep 0.05; done
touch "$CUDA_MPS_PIPE_DIRECTORY/control"
exec sleep 600
"""
    for name, text in (("nvidia-cuda-mps-control", control), ("nvidia-smi", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    plugin = plugins.make([MEMORY | {"mps": {"stop_after": "100ms"}}], driver_root=str(tmp_path / "driver"))
    try:
        plugin.start()
        with pytest.raises(NotReady, match="its MPS control daemon is starting"):
            plugin.device_list(DeviceList(resource=MEM))
        asked.touch()
        until(lambda: _listed(plugin))
        assert [(one.healthy, one.reason) for one in plugin.device_list(DeviceList(resource=MEM))] == [(True, "")] * 4
    finally:
        plugin.stop()
        for file in tmp_path.glob("mps/*/daemon.json"):
            os.kill(json.loads(file.read_text())["pid"], 9)
        folders.unmount_below(tmp_path)


def test_a_card_whose_cdi_spec_cannot_be_written_is_not_allocatable_and_readyz_says_why(
    plugins: GpuPlugins, tmp_path: Path, with_nodes: str
) -> None:
    folder = tmp_path / "cdi"
    folder.touch()
    plugin = plugins.make([MEMORY | {"access": {"cdi": "field", "cdi_folder": str(folder)}}], dev_root=with_nodes)
    plugin.start()
    assert {one.reason.partition(":")[0] for one in devices(plugin)} == {
        "the CDI spec of nodeplug.io/gpu cannot be written"
    }
    with pytest.raises(NotReady, match=r"the CDI spec of nodeplug.io/gpu cannot be written"):
        plugin.health()
    folder.unlink()
    until(lambda: all(one.healthy for one in devices(plugin)))
    plugin.health()


def test_the_first_list_of_cards_with_a_cdi_spec_is_healthy(
    plugins: GpuPlugins, tmp_path: Path, with_nodes: str
) -> None:
    plugin = plugins.make(
        [MEMORY | {"access": {"cdi": "field", "cdi_folder": str(tmp_path / "cdi")}}], poll="1h", dev_root=with_nodes
    )
    plugin.start()
    assert [one.healthy for one in plugin.device_list(DeviceList(resource=MEM))] == [True] * 4


def test_a_container_gets_no_cdi_name_that_the_runtime_does_not_know(
    plugins: GpuPlugins, tmp_path: Path, with_nodes: str
) -> None:
    folder = tmp_path / "cdi"
    plugin = plugins.make(
        [MEMORY | {"access": {"cdi": "field", "cdi_folder": str(folder)}}], poll="1h", dev_root=with_nodes
    )
    plugin.start()
    (device, *_) = devices(plugin)
    asked = DeviceAllocate(resource=MEM, ids=(device.id,), devices=(device,))

    def refused() -> bool:
        """A look that was asked for before may write the spec again before the container is asked for."""
        for file in folder.glob("*.json"):
            file.unlink(missing_ok=True)
        try:
            plugin.device_allocate(asked)
        except NotReady as error:
            return "nodeplug writes it again within seconds" in error.message
        return False

    until(refused)
    until(lambda: list(folder.glob("*.json")))
    assert plugin.device_allocate(asked).cdi == ("nodeplug.io/gpu=GPU-0000",)
