"""What a section may ask while its calls end, and which namespaces a delegate's request may have."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import nodeplug as n
from nodeplug import hookimpl
from nodeplug.contract.errors import InvalidRequest, NotReady
from nodeplug.hosting.in_flight import InFlight
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.rights import Permits


class Net:
    """A CNI plugin."""

    @hookimpl
    def claims(self) -> list[n.Claim]:
        return [n.CniClaim("net")]

    @hookimpl
    def cni_add(self) -> n.CniResult:
        return n.CniResult()

    @hookimpl
    def cni_del(self) -> None:
        return


@pytest.fixture
def permits() -> Permits:
    registry = Registry()
    registry.load("net", Net(), "the test")
    return Permits("net", registry, InFlight())


@pytest.fixture
def here() -> Iterator[n.Netns]:
    netns = n.Netns.current()
    yield netns
    netns.close()


def deletion(here: n.Netns, **more: Any) -> n.CniDel:
    about: dict[str, Any] = {"id": "1", "claim": "net", "network": "n", "version": "1.0.0", "config": {}}
    return n.CniDel(**{**about, "host_netns": here, "container_id": "c", "ifname": "eth0", "netns": here, **more})


def asked(permits: Permits, request: n.CniRequest) -> None:
    permits.checked("delegate", lambda *_: None)(request, "inner", {})


def test_a_call_delegates_until_it_has_ended_also_while_the_daemon_ends(permits: Permits, here: n.Netns) -> None:
    request = deletion(here)
    with permits.in_flight.entered("net", request):
        permits.registry.end()
        asked(permits, request)
    with pytest.raises(InvalidRequest, match="is not serving a CNI request"):
        asked(permits, request)


def test_what_a_section_serves_is_known_while_the_daemon_ends(permits: Permits) -> None:
    permits.registry.end()
    assert permits.serves("cni") == {"net"}
    assert permits.serves("device") == frozenset()


def test_another_path_to_the_same_namespace_is_refused(permits: Permits, here: n.Netns, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/proc/self/ns/net")
    other = n.Netns(here.fd, str(link))
    with permits.in_flight.entered("net", request := deletion(here)):
        for changed in (replace(request, netns=other), replace(request, host_netns=other)):
            with pytest.raises(InvalidRequest, match="namespace is not that of the request"):
                asked(permits, changed)


def test_a_section_that_serves_nothing_is_told_so(permits: Permits, here: n.Netns) -> None:
    with pytest.raises(NotReady, match="section 'other' serves no CNI plugin"):
        asked(Permits("other", permits.registry, InFlight()), deletion(here))


def test_a_pipe_at_the_path_of_a_namespace_hangs_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(n.InvalidNetns, match="is not a network namespace"):
        n.Netns.open(str(tmp_path / "pipe"))
