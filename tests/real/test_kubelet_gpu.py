"""kubelet and the memory of GPUs: two simulated cards, and static pods that share them.

One kubelet serves the whole file, and three pods live through all of it: two of them share a card.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.real.consumers import Lab, PrivateNode, open_lab

from nodeplug.testing import folders

MEMORY = "aliyun.com/gpu-mem"
PUBLISHED = Path(__file__).parents[2] / "configs" / "cni" / "10-nodeplug.conflist"
PLUGINS = f"""
[plugins.bridge]
[plugins.host-local]
[plugins.loopback.config]
names = ["loopback"]
[plugins.gpu.config]
driver = "simulated"
poll = "200ms"
health = {{ probation = "1s" }}
simulated = [{{ memory = "8GiB", count = 2 }}]
[[plugins.gpu.config.resources]]
sharing = "memory"
resource = "{MEMORY}"
withhold = "never"
overuse = {{ grace = "300ms" }}
"""
PODS = {"small": 4, "smaller": 3, "large": 5}
"""Units; `small` and `smaller` fit on one card, and leave 1 unit there and 3 beside `large`."""
GIB = 1 << 30


def ask(lab: Lab) -> dict[str, Any]:
    """Return what `nodeplug gpu --json` prints."""
    ended = lab.daemon.run("gpu", "--json")
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(ended.stdout)["gpu"])


def held(lab: Lab) -> dict[str, tuple[str, int]]:
    """Return card and units of every pod that holds some."""
    return {
        use["pod"].removesuffix(f"-{lab.private.name}"): (card["uuid"], use["units"])
        for card in ask(lab)["cards"]
        for use in card["containers"]
    }


def environment(lab: Lab, pod: str) -> dict[str, str]:
    """Return the variables of a pod's container."""
    lines = lab.kubelet.execute(pod, "/bin/env").splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def refusal(lab: Lab, pod: str, units: int) -> str:
    """Ask for units that no pod can get, and return what kubelet says."""
    lab.put(pod, limits={MEMORY: units})
    said = lab.kubelet.failed(pod)
    lab.kubelet.drop(pod)  # it would be tried again by a kubelet that starts
    return said


def wait_until_held(lab: Lab, pods: dict[str, int]) -> dict[str, tuple[str, int]]:
    """Wait until exactly these pods hold so many units, and return where."""

    def as_wanted() -> dict[str, tuple[str, int]] | None:
        found = held(lab)
        return found if {pod: units for pod, (_, units) in found.items()} == pods else None

    return dict(lab.kubelet.wait_for(f"the units of {', '.join(pods)}", as_wanted))


@pytest.fixture(scope="module")
def lab(make_private_node: Callable[..., PrivateNode], runtime: Path | None, kubelet_program: Path) -> Iterator[Lab]:
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    try:
        with (
            make_private_node(folder / "n") as private,
            open_lab(
                private, folder, kubelet_program, PLUGINS, resource=MEMORY, conflists=[PUBLISHED], runtime=runtime
            ) as made,
        ):
            made.run("warm")  # makes what stays on purpose, such as the bridge
            made.kubelet.clear()
            before = made.inventory()
            yield made
            assert made.since(before) == []
    finally:
        log = folder / "n" / "daemon.log"
        sys.stdout.write(log.read_text() if log.exists() else "")  # shown when a test fails
        folders.remove(folder)


@pytest.fixture(scope="module")
def cards(lab: Lab) -> dict[str, str]:
    """The card of each pod that lives through the whole file."""
    for name, units in PODS.items():
        lab.run(name, limits={MEMORY: units})
    return {pod: card for pod, (card, _) in wait_until_held(lab, PODS).items()}


@pytest.fixture
def hurt(lab: Lab) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Say what is wrong with cards, by UUID; afterwards all are well."""
    file = lab.daemon.paths.run / "plugins" / "gpu" / "simulated-faults.json"

    def write(faults: dict[str, Any]) -> None:
        new = file.with_suffix(".new")
        new.write_text(json.dumps({"cards": faults}))
        new.rename(file)

    yield write
    file.unlink(missing_ok=True)
    lab.kubelet.wait_for("healthy cards", lambda: {card["state"] for card in ask(lab)["cards"]} == {"healthy"})


def test_two_pods_share_a_card_and_read_their_shares_in_their_environment(lab: Lab, cards: dict[str, str]) -> None:
    assert cards["small"] == cards["smaller"] != cards["large"]
    for pod, units in PODS.items():
        found = environment(lab, pod)
        assert found["NVIDIA_VISIBLE_DEVICES"] == found["NODEPLUG_GPU_UUID"] == cards[pod]
        assert found["NODEPLUG_GPU_MEMORY_BYTES"] == str(units * GIB)
        assert (found["ALIYUN_COM_GPU_MEM_CONTAINER"], found["ALIYUN_COM_GPU_MEM_DEV"]) == (str(units), "8")


def test_a_pod_that_the_sum_could_hold_and_no_single_card_is_refused_with_the_numbers(
    lab: Lab, cards: dict[str, str]
) -> None:
    said = refusal(lab, "wide", 4)
    assert said.startswith("UnexpectedAdmissionError: ")
    numbers = f"4 units of {MEMORY} wanted on one card, the largest free card has 3: {cards['large']}"
    assert numbers in said
    assert numbers in lab.kubelet.log
    assert set(held(lab)) == set(PODS)


def test_memory_of_a_process_is_charged_to_the_container_that_it_runs_in(
    lab: Lab, cards: dict[str, str], hurt: Callable[[dict[str, Any]], None]
) -> None:
    pids = {}
    for pod in ("small", "smaller"):
        (line,) = [
            line for line in lab.containerd.ctr("tasks", "ls").splitlines() if lab.kubelet.container(pod) in line
        ]
        pids[pod] = int(line.split()[1])
    used = [{"pid": pids["small"], "used": "2GiB"}, {"pid": pids["smaller"], "used": "5GiB"}]
    hurt({cards["small"]: {"processes": [*used, {"pid": os.getpid(), "used": "1GiB"}]}})

    def charged() -> dict[str, Any]:
        (card,) = [card for card in ask(lab)["cards"] if card["uuid"] == cards["small"]]
        found = {use["pod"]: (use["used_bytes"], use["overuse"], use["pids"]) for use in card["containers"]}
        return {pod.removesuffix(f"-{lab.private.name}"): use for pod, use in found.items()} | {
            "unattributed": card["unattributed_bytes"]
        }

    wanted = {
        "small": (2 * GIB, False, [pids["small"]]),
        "smaller": (5 * GIB, True, [pids["smaller"]]),
        "unattributed": GIB,
    }
    lab.kubelet.wait_for("the memory of both pods", lambda: charged() == wanted)
    warning = f"default/smaller-{lab.private.name}/main on {cards['smaller']} uses 5Gi and was allocated 3Gi"
    lab.kubelet.wait_for("a warning", lambda: warning in lab.daemon.log)
    assert f"default/small-{lab.private.name}/main on" not in lab.daemon.log


def test_units_stay_with_their_pods_when_kubelet_restarts(lab: Lab, cards: dict[str, str]) -> None:
    before = {pod: lab.kubelet.container(pod) for pod in cards}
    allocations = lab.allocations()
    lab.kubelet.stop()
    lab.until_listed(lab.kubelet.start)
    assert {pod: card for pod, (card, _) in wait_until_held(lab, PODS).items()} == cards
    assert ({pod: lab.kubelet.container(pod) for pod in cards}, lab.allocations()) == (before, allocations)
    assert "the largest free card has 3" in refusal(lab, "wide-again", 4)


def test_units_stay_with_their_pods_when_the_daemon_is_killed(lab: Lab, cards: dict[str, str]) -> None:
    before = {pod: lab.kubelet.container(pod) for pod in cards}
    lab.daemon.kill()
    lab.until_listed(lab.daemon.start)
    assert {pod: card for pod, (card, _) in wait_until_held(lab, PODS).items()} == cards
    assert {pod: lab.kubelet.container(pod) for pod in cards} == before
    assert "the largest free card has 3" in refusal(lab, "wide-once-more", 4)


def test_a_card_that_falls_ill_gets_no_pod_until_it_heals(
    lab: Lab, cards: dict[str, str], hurt: Callable[[dict[str, Any]], None]
) -> None:
    lab.until_listed(lambda: hurt({cards["large"]: {"lost": True}}))
    assert "Requested: 2, Available: 1" in refusal(lab, "unlucky", 2)
    (ill,) = [card for card in ask(lab)["cards"] if card["state"] != "healthy"]
    assert (ill["uuid"], ill["state"]) == (cards["large"], "unhealthy")
    assert "the GPU is lost" in ill["reason"]
    lab.until_listed(lambda: hurt({}))
    lab.run("lucky", limits={MEMORY: 2})
    found = wait_until_held(lab, PODS | {"lucky": 2})
    assert found["lucky"] == (cards["large"], 2)
    assert {pod: found[pod][0] for pod in PODS} == cards
    lab.kubelet.drop("lucky")
    wait_until_held(lab, PODS)


def test_units_of_a_pod_that_ended_are_given_again(lab: Lab, cards: dict[str, str]) -> None:
    assert "the largest free card has 3" in refusal(lab, "early", 4)
    lab.kubelet.drop("small")
    wait_until_held(lab, {"smaller": 3, "large": 5})
    lab.run("heir", limits={MEMORY: 5})
    assert wait_until_held(lab, {"smaller": 3, "large": 5, "heir": 5})["heir"] == (cards["small"], 5)
