"""A node moves from other plugins to this one, with pods that go on: what those have is known, or waits."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.real.conftest import HERE, PUBLISHED
from tests.real.consumers import Lab, PrivateNode, open_lab
from tests.real.whole_cards import RESOURCE

from nodeplug.testing import folders

pytestmark = pytest.mark.real
CARDS = [f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in range(3)]
SHARED = [f"GPU-11111111-0000-0000-0000-00000000000{number}" for number in range(3)]
"""Others, as what a card was before counts for a minute."""
NETWORK = '[plugins.bridge]\n[plugins.host-local]\n[plugins.loopback.config]\nnames = ["loopback"]\n'
FORMER = f'{NETWORK}[plugins.former]\nuses = "whole_cards:WholeCards"\nisolation = "thread"\n'
OURS = (
    f'{NETWORK}[plugins.gpu.config]\ndriver = "simulated"\npoll = "200ms"\n'
    + "".join(f'[[plugins.gpu.config.simulated]]\nuuid = "{one}"\n' for one in CARDS)
    + f'[[plugins.gpu.config.resources]]\nsharing = "exclusive"\nresource = "{RESOURCE}"\n'
)
FORMER_SHARED = FORMER.replace("WholeCards", "SharedCards")
OURS_SHARED = OURS.replace('sharing = "exclusive"', 'sharing = "replicas"\nreplicas = 2')
OURS_SHARED = OURS_SHARED.replace("GPU-00000000", "GPU-11111111")
ONE = {RESOURCE: 1}


@pytest.fixture(scope="module")
def lab(make_private_node: Callable[..., PrivateNode], runtime: Path | None, kubelet_program: Path) -> Iterator[Lab]:
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    search = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    env = {"PYTHONPATH": search, "CARDS": ",".join(CARDS), "SHARED_CARDS": ",".join(SHARED)}
    try:
        with (
            make_private_node(folder / "n") as private,
            open_lab(
                *(private, folder, kubelet_program, FORMER),
                resource=RESOURCE,
                conflists=[PUBLISHED],
                runtime=runtime,
                env=env,
            ) as made,
        ):
            yield made
    finally:
        log = folder / "n" / "daemon.log"
        sys.stdout.write(log.read_text() if log.exists() else "")  # shown when the test fails
        folders.remove(folder)


def switch(lab: Lab, plugins: str) -> None:
    """Change the configuration, and wait until kubelet has the other plugin's list."""
    lab.until_listed(lambda: lab.daemon.configure(plugins))


def card_of(lab: Lab, pod: str) -> str:
    lines = lab.kubelet.execute(pod, "/bin/env").splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("NVIDIA_VISIBLE_DEVICES="))


def holders(lab: Lab) -> dict[str, list[str]]:
    ended = lab.daemon.run("gpu", "--json")
    assert ended.returncode == 0, ended.stderr
    cards: list[dict[str, Any]] = json.loads(ended.stdout)["gpu"]["cards"]
    return {
        card["uuid"]: [one["pod"].removesuffix(f"-{lab.private.name}") for one in card["containers"]] for card in cards
    }


def reasons(lab: Lab) -> dict[str, str]:
    ended = lab.daemon.run("gpu", "--json")
    return {card["uuid"]: str(card["reason"]) for card in json.loads(ended.stdout)["gpu"]["cards"]}


def test_pods_keep_their_whole_cards_when_the_node_moves_and_when_it_moves_back(lab: Lab) -> None:
    lab.run("kept", limits=ONE)
    before, card = lab.kubelet.container("kept"), card_of(lab, "kept")
    switch(lab, OURS)
    lab.kubelet.wait_for("its holder", lambda: holders(lab)[card] == ["kept"])
    for name in ("second", "third"):
        lab.run(name, limits=ONE)
    assert {card_of(lab, name) for name in ("kept", "second", "third")} == set(CARDS)
    lab.put("fourth", limits=ONE)
    assert "Requested: 1, Available: 0" in lab.kubelet.failed("fourth")
    lab.kubelet.drop("fourth")
    switch(lab, FORMER)
    lab.kubelet.drop("second")
    lab.run("fifth", limits=ONE)
    assert {card_of(lab, name) for name in ("kept", "fifth", "third")} == set(CARDS)
    assert lab.kubelet.container("kept") == before
    lab.kubelet.clear()


def test_the_card_of_a_pod_that_has_a_replica_of_another_plugin_waits_for_its_end(lab: Lab) -> None:
    switch(lab, FORMER_SHARED)
    lab.run("former", limits=ONE)
    theirs = card_of(lab, "former")
    switch(lab, OURS_SHARED)
    waits = {one: one == theirs for one in SHARED}
    lab.kubelet.wait_for(
        "the card to wait", lambda: {one: "former" in why for one, why in reasons(lab).items()} == waits
    )
    for number in range(4):
        lab.run(f"own{number}", limits=ONE)
    assert theirs not in {card_of(lab, f"own{number}") for number in range(4)}
    lab.put("fifth", limits=ONE)
    assert "Requested: 1, Available: 0" in lab.kubelet.failed("fifth")
    assert card_of(lab, "former") == theirs
    lab.kubelet.clear()
