"""Whatever happens to the daemon, kubelet and the API server: no part is sold twice, and nothing is left."""

import os
import secrets
import sys
from random import Random

import pytest
from tests.node.dra.cluster import Served
from tests.node.dra.torture import DraTorture

pytestmark = pytest.mark.unprivileged


@pytest.fixture
def torture(served: Served) -> DraTorture:
    seed = os.environ.get("NODEPLUG_DRA_SEED") or secrets.token_hex(4)
    sys.stdout.write(f"NODEPLUG_DRA_SEED={seed}\n")
    return DraTorture(**vars(served), random=Random(seed))


def torture_for(torture: DraTorture, steps: int) -> None:
    torture.play(steps)
    torture.settle()
    sys.stdout.write(f"{torture.lives} lives, {torture.kills} kills, {len(torture.kubelet.events)} failed starts\n")
    assert "Traceback" not in torture.node.log
    assert torture.lives > 0
    assert torture.kills > 0


@pytest.mark.whole
def test_claims_and_pods_survive_whatever_happens(torture: DraTorture) -> None:
    torture_for(torture, int(os.environ.get("NODEPLUG_DRA_STEPS", "60")))


@pytest.mark.soak
def test_claims_and_pods_survive_whatever_happens_for_long(torture: DraTorture) -> None:
    torture_for(torture, int(os.environ.get("NODEPLUG_DRA_STEPS", "10000")))
