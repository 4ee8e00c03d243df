"""Reserved addresses whose containers are gone: `nodeplug net gc` frees what nobody has, and nothing on doubt."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need

from nodeplug import Netns
from nodeplug.testing import Sandbox, forked

pytestmark = pytest.mark.xdist_group("leftovers")
"""Every namespace of the machine is looked at, and the tests use one address."""
OLD = 3600.0


@dataclass(frozen=True)
class Place:
    """A folder of reservations, one of libcni's cache, and one of namespaces.

    The command runs in a network namespace of its own, and looks at folders of its own: other tests use the usual ones.
    """

    folder: Path
    host: Path

    def reserve(self, address: str, container: str = "c1", age: float = OLD) -> Path:
        """Reserve an address as the reference's host-local does."""
        network = self.folder / "networks" / "net"
        network.mkdir(parents=True, exist_ok=True)
        (network / "lock").touch()
        file = network / address
        file.write_text(f"{container}\r\neth0")
        written = time.time() - age
        os.utime(file, (written, written))
        return file

    def cache(self, netns: str | Path, container: str = "c1") -> None:
        """Write what libcni caches of an ADD."""
        cache = self.folder / "results"
        cache.mkdir(exist_ok=True)
        known = {"kind": "cniCacheV1", "containerId": container, "ifName": "eth0", "networkName": "net"}
        (cache / f"net-{container}-eth0").write_text(json.dumps({**known, "netns": str(netns)}))

    def run(self, *options: str) -> str:
        places = {"data": "networks", "cache": "results", "tuning": "tuning", "run": "run"}
        folders = [word for name, place in places.items() for word in (f"--{name}-dir", str(self.folder / place))]
        with closing(Netns.open(str(self.host))) as host, host.entered():
            done = forked.run("nodeplug", ["net", "gc", *folders, *options], {**os.environ, "COLUMNS": "250"})
        assert done.returncode == 0, done.stderr
        return done.stdout

    def gc(self, *options: str) -> list[dict[str, Any]]:
        return list(json.loads(self.run("--json", *options)))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with Sandbox(tmp_path / "host") as host:
        yield Place(tmp_path, host.path)


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path / "pod") as made:
        yield made


def test_an_address_whose_namespace_is_gone_is_freed(place: Place) -> None:
    file = place.reserve("198.18.88.5")
    place.cache(place.folder / "pod")
    (row,) = place.gc()
    assert (row["state"], row["freed"], file.exists()) == ("left over", True, False)
    assert row["why"] == f"network namespace {place.folder}/pod of its container is gone"
    assert place.gc() == []


def test_a_file_where_a_namespace_was_is_none(place: Place) -> None:
    file = place.reserve("198.18.88.5")
    (place.folder / "pod").touch()
    place.cache(place.folder / "pod")
    place.gc()
    assert not file.exists()


def test_a_dry_run_frees_nothing_and_says_the_same(place: Place) -> None:
    file = place.reserve("198.18.88.5")
    place.cache(place.folder / "pod")
    (shown,) = place.gc("--dry-run")
    assert (shown["state"], shown["freed"], file.exists()) == ("left over", False, True)
    (done,) = place.gc()
    assert {**done, "freed": False} == shown


def test_an_address_that_a_namespace_has_is_held_whatever_the_cache_says(place: Place, sandbox: Sandbox) -> None:
    file = place.reserve("198.18.88.5")
    need("ip", "nsenter")
    subprocess.run(
        ["nsenter", f"--net={sandbox.path}", "ip", "address", "add", "198.18.88.5/24", "dev", "lo"], check=True
    )
    place.cache(place.folder / "gone")
    (row,) = place.gc("--unknown")
    assert (row["state"], file.exists()) == ("held", True)
    assert row["why"] == f"network namespace {sandbox.path} has the address"


def test_an_address_that_its_namespace_has_given_to_a_virtual_machine_is_held(place: Place, sandbox: Sandbox) -> None:
    file = place.reserve("198.18.88.5")
    place.cache(sandbox.path)
    (row,) = place.gc("--unknown")
    assert (row["state"], file.exists()) == ("held", True)
    assert row["why"] == f"network namespace {sandbox.path} of its container exists"


def test_an_address_in_a_further_network_of_a_container_that_lives_is_held(place: Place, sandbox: Sandbox) -> None:
    """Of what `nodeplug-networks` or multus attach, libcni's cache has one network, the runtime's."""
    file = place.reserve("198.18.88.5")
    place.cache(sandbox.path)
    (known,) = (place.folder / "results").iterdir()
    known.write_text(known.read_text().replace('"net"', '"all"'))
    (row,) = place.gc("--unknown")
    assert (row["state"], file.exists()) == ("held", True)


def test_an_address_whose_add_may_still_run_is_held(place: Place) -> None:
    file = place.reserve("198.18.88.5", age=1.0)
    place.cache(place.folder / "pod")
    (row,) = place.gc("--unknown")
    assert (row["state"], file.exists()) == ("held", True)


def test_what_the_cache_does_not_know_stays_until_an_administrator_asks(place: Place) -> None:
    file = place.reserve("198.18.88.5")
    place.cache(place.folder / "pod", "another")
    (row,) = place.gc()
    assert (row["state"], row["freed"], file.exists()) == ("unknown", False, True)
    (row,) = place.gc("--unknown")
    assert (row["freed"], file.exists()) == (True, False)


def test_a_namespace_that_cannot_be_seen_from_here_is_not_gone(place: Place) -> None:
    file = place.reserve("198.18.88.5")
    place.cache("/no/such/folder/pod")
    (row,) = place.gc()
    assert (row["state"], file.exists()) == ("unknown", True)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff", b'{"kind": "cniCacheV2"}'])
def test_a_damaged_cache_says_nothing(place: Place, damage: bytes) -> None:
    place.reserve("198.18.88.5")
    place.cache(place.folder / "pod", "another")
    (place.folder / "results" / "net-c1-eth0").write_bytes(damage)
    (row,) = place.gc("--dry-run")
    assert row["state"] == "unknown"


def test_who_cannot_see_every_namespace_frees_nothing(place: Place) -> None:
    file = place.reserve("198.18.88.5")
    place.cache(place.folder / "pod")
    folders = ["--data-dir", str(place.folder / "networks"), "--cache-dir", str(place.folder / "results")]
    need("setpriv")
    command = ["setpriv", "--bounding-set=-sys_ptrace", sys.executable, "-m", "nodeplug", "net", "gc", *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, file.exists()) == (1, True)
    assert done.stderr.startswith(
        "error: cannot look into network namespace /proc/1/ns/net: Permission denied; run this"
    )


def test_people_get_a_table_and_its_reasons(place: Place) -> None:
    assert place.run() == f"no address is reserved below {place.folder}/networks, and nothing else is left\n"
    place.reserve("198.18.88.5")
    place.cache(place.folder / "pod")
    text = place.run()
    assert [word for word in ("198.18.88.5", "c1", "eth0", "freed", "is gone") if word not in text] == []
