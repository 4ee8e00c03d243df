"""Whatever happens to the daemon, kubelet and the API server: no part is sold twice, and nothing is left."""

import json
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.node.dra.cluster import CARDS, DRIVER, SECTION
from tests.node.dra.objects import NODE
from tests.node.dra.torture import DraTorture

from nodeplug.testing import ScratchNode
from nodeplug.testing.dra import DraKubelet, DraTimeouts, ResourceApi, Scheduler

pytestmark = pytest.mark.unprivileged
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
def torture(short_path: Path, api: ResourceApi, scheduler: Scheduler) -> Iterator[DraTorture]:
    seed = os.environ.get("NODEPLUG_DRA_SEED") or secrets.token_hex(4)
    sys.stdout.write(f"NODEPLUG_DRA_SEED={seed}\n")
    scheduler.api.change("deviceclasses", "acme", {"spec": {"selectors": selectors()}})
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
    with node, DraKubelet(short_path / "var" / "lib" / "kubelet", api, [cdi], timeouts=timeouts) as kubelet:
        kubelet.until_registered(DRIVER)
        yield DraTorture(node, api, scheduler, kubelet, folder, cdi, Random(seed), configuration)


def selectors() -> list[dict[str, dict[str, str]]]:
    return [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]


def torture_for(torture: DraTorture, steps: int) -> None:
    torture.play(steps)
    torture.settle()
    sys.stdout.write(f"{torture.lives} lives, {torture.kills} kills, {len(torture.kubelet.events)} failed starts\n")
    assert "Traceback" not in torture.node.log
    assert torture.lives > 0
    assert torture.kills > 0


def test_claims_and_pods_survive_whatever_happens(torture: DraTorture) -> None:
    torture_for(torture, int(os.environ.get("NODEPLUG_DRA_STEPS", "200")))


@pytest.mark.soak
def test_claims_and_pods_survive_whatever_happens_for_long(torture: DraTorture) -> None:
    torture_for(torture, int(os.environ.get("NODEPLUG_DRA_STEPS", "10000")))
