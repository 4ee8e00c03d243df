"""`nodeplug gpu` against a daemon with simulated cards and the Kubelet stand-in; metrics and the document beside it."""

import json
import os
import re
import socket
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nodeplug.commands import inspect
from nodeplug.testing import BlockingKubelet, ScratchNode, host
from nodeplug.testing.waiting import until
from nodeplug_gpu.access import NodePaths
from nodeplug_gpu.cards import Utilization, Uuid
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.holders import Container
from nodeplug_gpu.metrics import metrics as measured
from nodeplug_gpu.overuse import OveruseWatch, Usage
from nodeplug_gpu.tracker import InventoryTracker

DOCS = Path(__file__).parents[2] / "docs" / "gpu.md"
MEMORY, REPLICAS, SLICE = "aliyun.com/gpu-mem", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
GIB = 1 << 30
PODS = (
    ("a", "default", MEMORY, 2),
    ("b", "default", MEMORY, 4),
    ("r", "ml", REPLICAS, 1),
    ("sliced", "default", SLICE, 1),
)
OF_PROCESSES = {
    "nodeplug_gpu_container_used_bytes",
    "nodeplug_gpu_container_overuse",
    "nodeplug_gpu_container_utilization_ratio",
}
"""There are none without processes in containers of a real kubelet."""
GPU = """
[plugins.gpu.config]
driver = "simulated"
poll = "100ms"
health = { probation = "100ms" }
simulated = [
    { model = "NVIDIA A10", memory = "8GiB", count = 2, numa_node = 1 },
    { model = "NVIDIA L4", memory = "24GiB" },
    { model = "NVIDIA H100", memory = "80GiB", mig = ["1g.10gb", "3g.40gb"] },
    { model = "NVIDIA T4", memory = "16GiB" },
]
[[plugins.gpu.config.resources]]
sharing = "memory"
cards = { model = ["*A10"] }
[[plugins.gpu.config.resources]]
sharing = "replicas"
resource = "nvidia.com/gpu.shared"
cards = { model = ["*L4"] }
replicas = 4
[[plugins.gpu.config.resources]]
sharing = "mig"
strategy = "mixed"
profiles = { "1g.10gb" = "nvidia.com/mig-1g.10gb" }
"""
OTHER = """
[plugins.more-gpus]
uses = "gpu"
[[plugins.more-gpus.config.resources]]
sharing = "memory"
resource = "example.com/other-mem"
"""


class Machine:
    """A daemon with simulated cards, and a kubelet with pods that hold some of them."""

    def __init__(self, folder: Path, plugins: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        supervisor = f'listen = "{self.address}"\nnode_name = "worker-1"\npodresources_poll = "100ms"'
        self.node = ScratchNode(folder, plugins, supervisor=supervisor, fork=True)
        self.kubelet = BlockingKubelet(folder / "var" / "lib" / "kubelet")

    def start(self) -> None:
        self.kubelet.start()
        self.node.start()
        for pod, namespace, resource, units in PODS:
            self.kubelet.until(lambda: self.kubelet.allocatable(resource) >= units)  # noqa: B023 - asked at once
            self.kubelet.admit(pod, {resource: units}, namespace=namespace)
        self.until(lambda told: {use["pod"] for use in uses_of(told)} == {pod for pod, *_ in PODS})

    def close(self) -> None:
        self.node.stop()
        self.kubelet.close()

    def ask(self) -> dict[str, Any]:
        """Return the document without the command line's start."""
        return dict(inspect("gpu", self.node.config_path, self.node.root)["gpu"])

    def until(self, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for a document of which something is true."""
        end = time.monotonic() + 20
        while not true(told := self.ask()):
            assert time.monotonic() < end, json.dumps(told, indent=1)
            time.sleep(0.02)
        return told

    def run(self, *options: str) -> str:
        ended = self.node.run("gpu", *options)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def hurt(self, cards: dict[str, Any]) -> None:
        """Say what is wrong with cards, by index."""
        file = self.node.paths.run / "plugins" / "gpu" / "simulated-faults.json"
        new = file.with_suffix(".new")
        new.write_text(json.dumps({"cards": cards}))
        new.rename(file)


def uses_of(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [use for card in told["cards"] for use in card["containers"]]


def shared_card(told: dict[str, Any]) -> dict[str, Any]:
    """Return the card that two pods share by its memory."""
    (card,) = [card for card in told["cards"] if card["sharing"] == "memory" and card["containers"]]
    return dict(card)


@pytest.fixture(scope="module")
def make() -> Iterator[Callable[[str], Machine]]:
    machines: list[Machine] = []
    with ExitStack() as stack:

        def begin(plugins: str) -> Machine:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="np-", dir="/tmp")))
            for one in machines:
                one.close()
            machines.append(Machine(folder, plugins))
            stack.callback(machines[-1].close)
            machines[-1].start()
            return machines[-1]

        yield begin


@pytest.fixture(scope="module")
def machine(make: Callable[[str], Machine]) -> Machine:
    """One for all tests that leave it as it was."""
    return make(GPU)


@pytest.fixture
def hurt(machine: Machine) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Hurt cards for one test."""
    yield machine.hurt
    machine.hurt({})
    machine.until(lambda told: {card["state"] for card in told["cards"]} == {"healthy"})


@pytest.mark.whole
def test_the_chart_tells_cards_shares_and_pods(machine: Machine) -> None:
    card = shared_card(machine.ask())
    assert machine.run().split("\n\n")[1 + card["index"]] == (
        f"GPU {card['index']}  NVIDIA A10  8Gi  NUMA node 1  healthy\n"
        f"  {card['uuid']}\n"
        "  [AAAAAAAABBBBBBBBBBBBBBBB········]  6/8 of aliyun.com/gpu-mem\n"
        "  A default/a/main  2 (2Gi)\n"
        "  B default/b/main  4 (4Gi)"
    )


def test_the_chart_tells_instances_and_cards_that_are_not_advertised(machine: Machine) -> None:
    shown = machine.run()
    assert re.search(rf"^  1g\.10gb  MIG-[0-9a-f-]+  {SLICE}, allocated to default/sliced/main$", shown, re.MULTILINE)
    assert re.search(r"^  3g\.40gb  MIG-[0-9a-f-]+  not advertised$", shown, re.MULTILINE)
    assert "GPU 4  NVIDIA T4  not advertised: no entry of `resources` chooses it\n" in shown


def test_a_pipe_gets_no_colour_and_no_wrapped_line(machine: Machine) -> None:
    shown = machine.run()
    assert "\x1b" not in shown
    assert all(
        line.startswith(("driver ", "GPU ", "  ")) or "  " in line or ": " in line for line in shown.split("\n") if line
    )


def test_the_reason_of_a_unhealthy_card_is_in_the_chart(
    machine: Machine, hurt: Callable[[dict[str, Any]], None]
) -> None:
    hurt({"2": {"lost": True}})
    machine.until(lambda told: told["cards"][2]["state"] == "unhealthy")
    assert re.search(r"GPU 2  NVIDIA L4  24Gi  unhealthy for \d+ s: the driver answers the GPU is lost", machine.run())


def test_memory_of_a_process_in_no_container_is_unattributed(
    machine: Machine, hurt: Callable[[dict[str, Any]], None]
) -> None:
    hurt({"2": {"processes": [{"pid": os.getpid(), "used": "3GiB"}]}})
    machine.until(lambda told: told["cards"][2]["unattributed_bytes"] == 3 * GIB)
    assert "1/4 of nvidia.com/gpu.shared, 3Gi in use, 3Gi of it unattributed\n" in machine.run()


def test_the_tables_of_gpushare_are_for_the_cards_that_are_shared_by_memory(machine: Machine) -> None:
    row = ["0/8", "0/8"]
    row[shared_card(machine.ask())["index"]] = "6/8"
    assert machine.run("--format", "gpushare") == (
        "NAME      IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)\n"
        f"worker-1  unknown    {row[0]}                    {row[1]}                    6/16\n"
        f"{'-' * 50}\n"
        "Allocated/Total GPU Memory In Cluster:\n"
        "6/16 (37%)  \n"
    )


def test_the_detailed_table_of_gpushare_has_the_pods(machine: Machine) -> None:
    lines = machine.run("--format", "gpushare", "-d").splitlines()
    assert lines[1:3] == ["NAME:       worker-1", "IPADDRESS:  unknown"]
    assert [line.split()[:2] for line in lines[5:7]] == [["a", "default"], ["b", "default"]]
    assert sorted(lines[6].split()[2:]) == ["0", "4"]
    assert lines[7:9] == ["Allocated :  6 (37%)", "Total :      16"]
    assert lines[-1] == "Allocated/Total GPU Memory In Cluster:  6/16 (37%)  "


def test_json_comes_by_either_option(machine: Machine) -> None:
    by_flag, by_format = (json.loads(machine.run(*options)) for options in (["--json"], ["--format", "json"]))
    assert [*by_flag] == [*by_format] == ["gpu"]
    assert shared_card(by_flag["gpu"])["uuid"] == shared_card(by_format["gpu"])["uuid"]


def documented_keys() -> dict[str, set[str]]:
    """Return the keys of each object of the document, as the page has them."""
    section = DOCS.read_text().partition("### The document")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]*) \| ([^|]*) \|", section, re.MULTILINE)
    return {where.strip("` "): set(re.findall(r"`(\w+)`", keys)) for where, keys in rows if "`" in keys}


def test_the_page_has_every_key_of_the_document_and_no_other(machine: Machine) -> None:
    told = machine.ask()
    (sliced,) = [card for card in told["cards"] if card["instances"]]
    found = {
        "the section": told,
        "driver": told["driver"],
        "cards[]": sliced,
        "cards[].instances[]": sliced["instances"][0],
        "cards[].containers[]": sliced["containers"][0],
        "unadvertised[]": told["unadvertised"][0],
        "resources[]": told["resources"][0],
    }
    assert documented_keys() == {where: set(value) for where, value in found.items()}


def documented_metrics() -> dict[str, set[str]]:
    """Return the labels of each metric, as the page has them."""
    rows = re.findall(r"^ *\| (`nodeplug_gpu_[^|]*) \| ([^|]*) \|", DOCS.read_text(), re.MULTILINE)
    return {
        name: set(re.findall(r"`(\w+)`", labels.partition(":")[0]))
        for names, labels in rows
        for name in re.findall(r"`(\w+)`", names)
    }


def test_every_metric_of_the_page_is_exported_with_its_labels_and_no_other(machine: Machine) -> None:
    def exported() -> dict[str, set[str]]:
        page = urllib.request.urlopen(f"http://{machine.address}/metrics").read().decode()
        samples = re.findall(r"^(nodeplug_gpu_\w+){(.*)} ", page, re.MULTILINE)
        return {name: set(re.findall(r'(\w+)="', labels)) - {"plugin"} for name, labels in samples}

    wanted = {name: labels for name, labels in documented_metrics().items() if name not in OF_PROCESSES}
    end = time.monotonic() + 20
    while (found := exported()).keys() != wanted.keys():
        assert time.monotonic() < end, found
        time.sleep(0.1)
    assert found == wanted


def test_metrics_of_processes_are_those_of_the_page(tmp_path: Path) -> None:
    given = host(tmp_path)
    watch = OveruseWatch({}, given)
    watch.usage = {
        (Container("default", "a", "main"), Uuid("GPU-0")): Usage(GIB, GIB, (1,), utilization=Utilization(1, 1))
    }
    config = GpuConfig.model_validate({"resources": [{"sharing": "memory"}]})
    made = measured(config, InventoryTracker(config, given, NodePaths(run=tmp_path)), watch)
    labels = {f"nodeplug_{metric.name}": set(metric.samples[0].labels) for metric in made}
    assert {name: labels[name] for name in OF_PROCESSES} == {name: documented_metrics()[name] for name in OF_PROCESSES}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-d"], "--details is a layout of --format gpushare"),
        (["--json", "--format", "gpushare"], "exclude each other"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path: Path, options: list[str], said: str) -> None:
    ended = ScratchNode(tmp_path, GPU).run("gpu", *options)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in " ".join(ended.stderr.replace("│", " ").split())


def test_without_a_daemon_it_says_so_in_a_sentence(tmp_path: Path) -> None:
    ended = ScratchNode(tmp_path, GPU).run("gpu")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: the daemon does not listen at ")
    assert ended.stderr.endswith("is `nodeplug serve` running?\n")


def test_while_kubelet_reports_no_holders_units_are_not_shown_as_free(make: Callable[[str], Machine]) -> None:
    machine = make(GPU)
    machine.kubelet.kill()
    machine.until(lambda told: bool(told["allocations_unknown"]))
    shown = machine.run()
    assert "]  ?/8 of aliyun.com/gpu-mem\n" in shown
    assert "is unknown at present" in shown
    told = machine.ask()
    assert (
        {card["allocated_units"] for card in told["cards"]} == {one["allocated"] for one in told["resources"]} == {None}
    )
    ended = machine.node.run("gpu", "--format", "gpushare")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "is unknown at present" in ended.stderr


def test_a_second_section_takes_nothing_from_what_the_first_shows(make: Callable[[str], Machine]) -> None:
    node = make(GPU).node
    node.configure(GPU + OTHER)
    until(lambda: "plugin more-gpus is refused" in node.log)
    ended = node.run("gpu")
    assert (ended.returncode, "aliyun.com/gpu-mem" in ended.stdout) == (0, True), ended
    (reason,) = [plugin["reason"] for plugin in node.status()["plugins"] if plugin["name"] == "more-gpus"]
    assert "put the `resources` of both into it, and remove the other" in reason
