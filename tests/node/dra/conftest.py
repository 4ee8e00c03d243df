"""An API server with a class of all devices of one driver, a scheduler, a kubelet, and a daemon that serves cards."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.node.dra.cluster import CARDS, SECTION, Served
from tests.node.dra.cluster import DRIVER as OURS
from tests.node.dra.objects import DRIVER, NODE

from nodeplug.testing import ScratchNode
from nodeplug.testing.dra import DraKubelet, DraTimeouts, ResourceApi, Scheduler
from nodeplug.testing.waiting import until


@pytest.fixture
def api() -> Iterator[ResourceApi]:
    with ResourceApi(NODE) as server:
        yield server


@pytest.fixture
def scheduler(api: ResourceApi) -> Scheduler:
    made = Scheduler(api)
    made.add_class("acme", f'device.driver == "{DRIVER}"')
    return made


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    """The folder of CDI specs that the runtime reads."""
    (tmp_path / "cdi").mkdir()
    return tmp_path / "cdi"


@pytest.fixture
def kubelet(short_path: Path, api: ResourceApi, specs: Path) -> Iterator[DraKubelet]:
    """A kubelet that tries every tenth of a second what kubelet tries every second."""
    timeouts = DraTimeouts(retry=0.1, poll=0.02, wipe=0.3, health=0.1, call=10)
    with DraKubelet(short_path / "kubelet", api, [specs], timeouts=timeouts) as made:
        yield made


CONFIGURATION = """
[dra]
kubeconfig = "{kubeconfig}"

[plugins.{section}]
uses = "cards_guest:Cards"
serve = "dra"
config.folder = "{folder}"
"""
SUPERVISOR = f'listen = ""\nnode_name = "{NODE}"\ndevice_poll = "200ms"\n'


@pytest.fixture
def served(short_path: Path, api: ResourceApi, scheduler: Scheduler) -> Iterator[Served]:
    """A daemon that serves the cards of `cards_guest` by claims; the class `acme` has them."""
    selectors = [{"cel": {"expression": f'device.driver == "{OURS}"'}}]
    api.change("deviceclasses", "acme", {"spec": {"selectors": selectors}})
    folder, kubeconfig = short_path / "cards", short_path / "kubeconfig"
    (folder / "held").mkdir(parents=True)
    (folder / "cards.json").write_text(json.dumps(CARDS))
    kubeconfig.write_text(api.kubeconfig)
    configuration = CONFIGURATION.format(kubeconfig=kubeconfig, section=SECTION, folder=folder)
    node = ScratchNode(
        short_path,
        configuration,
        supervisor=SUPERVISOR,
        env={"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        fork=True,
    )
    cdi = short_path / "var" / "run" / "cdi"
    timeouts = DraTimeouts(retry=0.1, poll=0.02, health=0.2)
    with node, DraKubelet(short_path / "var" / "lib" / "kubelet", api, [cdi], timeouts=timeouts) as made:
        made.until_registered(OURS)
        until(lambda: bool(api.slices()))  # a claim that is placed before finds no device
        yield Served(node, api, scheduler, made, folder, cdi, configuration)
