import json
from typing import Any

import pytest

from nodeplug import InvalidRequest
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.ipam.host_local import HostLocal, HostLocalConfig


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Pods:
    """Pods of one network, whose plugin may start again."""

    def __init__(self, scratch: ScratchCni, *subnets: str, **ipam: Any) -> None:
        self.scratch = scratch
        self.clock = Clock()
        ranges = [[{"subnet": subnet}] for subnet in subnets or ("10.1.2.0/28",)]
        self.ipam = {"type": "host-local", "ranges": ranges, "keepFor": "1h", **ipam}
        self.count = 0
        self.restart()

    def restart(self) -> None:
        self.plugin = HostLocal(HostLocalConfig(data_dir=self.scratch.folder / "networks"), self.scratch.host)
        self.plugin._ipam._kept.now = self.clock
        self.plugin.start()

    @property
    def config(self) -> dict[str, Any]:
        return {"cniVersion": "1.0.0", "name": "net", "ipam": self.ipam}

    def start(self, name: str, **args: str) -> tuple[str, list[str]]:
        """Return the container's id and its addresses."""
        self.count += 1
        container, who = f"c{self.count}", {"K8S_POD_NAMESPACE": "ns", "K8S_POD_NAME": name} if name else {}
        found = self.scratch.add(
            self.plugin, self.config, container, self.scratch.host_netns, args={"IgnoreUnknown": "1", **who, **args}
        )
        return container, [str(ip.address.ip) for ip in found.ips]

    def end(self, container: str) -> None:
        self.scratch.delete(self.plugin, self.config, container)

    def pass_by(self, name: str, **args: str) -> list[str]:
        """Return the addresses that a pod has while it is there."""
        container, addresses = self.start(name, **args)
        self.end(container)
        return addresses

    def records(self) -> list[str]:
        texts = (path.read_text() for path in (self.scratch.folder / "journal").glob("kept*.json"))
        return sorted(json.loads(text)["key"].rpartition("/net ")[2] for text in texts)


@pytest.fixture
def pods(scratch: ScratchCni) -> Pods:
    return Pods(scratch)


def test_a_pod_that_comes_back_has_its_address_again(pods: Pods) -> None:
    before = pods.pass_by("db-0")
    assert pods.start("web")[1] != before
    assert pods.start("db-0")[1] == before


def test_a_pod_of_another_namespace_is_another_pod(pods: Pods) -> None:
    before = pods.pass_by("db-0")
    assert pods.start("db-0", K8S_POD_NAMESPACE="other")[1] != before


def test_an_address_of_each_version_comes_back(scratch: ScratchCni) -> None:
    pods = Pods(scratch, "10.1.2.0/28", "fd00::/64")
    before = pods.pass_by("db-0")
    pods.start("web")
    assert pods.start("db-0")[1] == before == ["10.1.2.2", "fd00::2"]


def test_it_comes_back_after_the_plugin_started_again(pods: Pods) -> None:
    before = pods.pass_by("db-0")
    pods.restart()
    assert pods.start("web")[1] != before
    pods.restart()
    assert pods.start("db-0")[1] == before


def test_an_address_waits_while_others_are_free_and_no_longer(scratch: ScratchCni) -> None:
    pods = Pods(scratch, "10.1.2.0/29")  # five addresses
    before = pods.pass_by("db-0")
    others = [pods.start(f"web-{number}")[1] for number in range(4)]
    assert before not in others
    assert pods.start("web-4")[1] == before
    assert pods.records() == [f"ns web-{number} eth0" for number in range(5)]


def test_who_finds_its_address_in_use_gets_another_one(scratch: ScratchCni) -> None:
    pods = Pods(scratch, "10.1.2.0/29")
    before = pods.pass_by("db-0")
    assert pods.start("", IP=before[0])[1] == before
    assert pods.start("db-0")[1] != before


def test_an_address_waits_for_as_long_as_it_is_to(pods: Pods) -> None:
    before = pods.pass_by("db-0")
    pods.start("web-0")  # finds it free
    pods.clock.now += 3599
    pods.start("web-1")
    assert "ns db-0 eth0" in pods.records()
    pods.clock.now += 2
    pods.start("web-2")
    assert "ns db-0 eth0" not in pods.records()
    found = [pods.start(f"more-{number}")[1] for number in range(10)]
    assert before in found


def test_while_a_pod_runs_its_address_does_not_wait(pods: Pods) -> None:
    container, before = pods.start("db-0")
    pods.clock.now += 7200
    pods.start("web-0")
    pods.end(container)
    pods.start("web-1")
    assert pods.start("db-0")[1] == before


def test_who_is_no_pod_leaves_no_record(pods: Pods) -> None:
    pods.pass_by("")
    assert pods.records() == []


def test_records_of_a_network_without_pods_go_at_some_start(pods: Pods) -> None:
    pods.pass_by("db-0")
    pods.restart()
    pods.clock.now += 3601
    pods.restart()
    assert pods.records() == []


def test_an_excluded_address_does_not_come_back(pods: Pods) -> None:
    before = pods.pass_by("db-0")
    pods.ipam["exclude"] = before
    assert pods.start("db-0")[1] != before


def test_a_damaged_record_counts_as_none(pods: Pods) -> None:
    pods.pass_by("db-0")
    (path,) = (pods.scratch.folder / "journal").glob("kept*.json")
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "data": {**record["data"], "addresses": ["x"]}}))
    pods.restart()
    assert pods.start("web")[1]


def test_a_journal_that_takes_no_record_keeps_no_pod_from_its_start(
    pods: Pods, caplog: pytest.LogCaptureFixture
) -> None:
    journal = pods.scratch.folder / "journal"
    pods.pass_by("first")  # the network is known
    journal.rename(journal.with_name("away"))
    journal.touch()  # what a folder was cannot be one
    assert pods.pass_by("db-0")
    assert "the addresses of pod ns/db-0 are not noted" in caplog.text


@pytest.mark.parametrize("time", ["soon", "0s", "-1h"])
def test_a_time_that_is_none_is_refused(scratch: ScratchCni, time: str) -> None:
    pods = Pods(scratch, keepFor=time)
    with pytest.raises(InvalidRequest, match="keepFor"):
        pods.start("db-0")


def test_without_the_key_nothing_waits_and_nothing_is_recorded(scratch: ScratchCni) -> None:
    pods = Pods(scratch, "10.1.2.0/29")
    del pods.ipam["keepFor"]
    first = pods.pass_by("db-0")
    assert pods.start("db-0")[1] != first
    assert pods.records() == []
