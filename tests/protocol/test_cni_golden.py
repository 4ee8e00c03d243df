"""CNI to the byte: environment and stdin in, stdout and exit status out, in every version of the specification."""

import asyncio
import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any

import pytest

from nodeplug import (
    CniAdd,
    CniCheck,
    CniClaim,
    CniDel,
    CniDns,
    CniGc,
    CniInterface,
    CniIp,
    CniResult,
    CniRoute,
    CniStatus,
    Exhausted,
    LimitedConnectivity,
    Netns,
    PluginError,
    hookimpl,
)
from nodeplug.cni.attachments import Attachments
from nodeplug.cni.results import VERSIONS
from nodeplug.cni.service import CniService
from nodeplug.cni.spool import Spool
from nodeplug.exec.frame import Frame, Reply
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner

RESULT = CniResult(
    interfaces=(
        CniInterface("br0", mac="02:00:00:00:00:01", mtu=1450),
        CniInterface("eth0", mac="02:00:00:00:00:02", sandbox="/ns"),
    ),
    ips=(
        CniIp(ip_interface("192.0.2.10/24"), gateway=ip_address("192.0.2.1"), interface=1),
        CniIp(ip_interface("2001:db8::10/64"), gateway=ip_address("2001:db8::1"), interface=1),
    ),
    routes=(CniRoute(ip_network("0.0.0.0/0"), gw=ip_address("192.0.2.1")), CniRoute(ip_network("::/0"), mtu=1400)),
    dns=CniDns(nameservers=("192.0.2.53",), search=("example.com",)),
)
DNS = '"dns": {"nameservers": ["192.0.2.53"], "search": ["example.com"]}'
V4_ROUTE = '{"dst": "0.0.0.0/0", "gw": "192.0.2.1"}'
V6_ROUTE = '{"dst": "::/0", "mtu": 1400}'
OLDEST = (
    f'"ip4": {{"ip": "192.0.2.10/24", "gateway": "192.0.2.1", "routes": [{V4_ROUTE}]}}, '
    f'"ip6": {{"ip": "2001:db8::10/64", "gateway": "2001:db8::1", "routes": [{{"dst": "::/0"}}]}}, {DNS}'
)
SANDBOX = '{"name": "eth0", "mac": "02:00:00:00:00:02", "sandbox": "/ns"}'
MIDDLE = (
    f'"interfaces": [{{"name": "br0", "mac": "02:00:00:00:00:01"}}, {SANDBOX}], "ips": ['
    '{"version": "4", "address": "192.0.2.10/24", "gateway": "192.0.2.1", "interface": 1}, '
    '{"version": "6", "address": "2001:db8::10/64", "gateway": "2001:db8::1", "interface": 1}], '
    f'"routes": [{V4_ROUTE}, {V6_ROUTE}], {DNS}'
)
MODERN = (
    f'"interfaces": [{{"name": "br0", "mac": "02:00:00:00:00:01", "mtu": 1450}}, {SANDBOX}], "ips": ['
    '{"address": "192.0.2.10/24", "gateway": "192.0.2.1", "interface": 1}, '
    '{"address": "2001:db8::10/64", "gateway": "2001:db8::1", "interface": 1}], '
    f'"routes": [{V4_ROUTE}, {V6_ROUTE}], {DNS}'
)
FORMS = dict(zip(VERSIONS, [OLDEST] * 2 + [MIDDLE] * 3 + [MODERN] * 2, strict=True))
ID = "00000000"
"""What stands in the answers below for the id of the request, which is another one each time."""
ENV = {
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/ns",
    "CNI_IFNAME": "eth0",
    "CNI_PATH": "/opt/cni/bin",
    "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=web",
}


def with_id(text: str) -> str:
    """Add the id of the request to an error, as `ask` shows it."""
    return f'{text[:-1]}; request {ID}"' if '"details": ' in text else f'{text}, "details": "request {ID}"'


class Plugin:
    """Answers the previous result, or a fixed one; fails as `error` says."""

    def __init__(self) -> None:
        self.error: PluginError | None = None
        self.seen: list[Any] = []

    def meet(self, request: Any) -> None:
        self.seen.append(request)
        if self.error is not None:
            raise self.error

    @hookimpl
    def claims(self) -> list[CniClaim]:
        return [CniClaim("golden")]

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        self.meet(request)
        return request.prev_result or RESULT

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        self.meet(request)

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        self.meet(request)

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        self.meet(request)

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        self.meet(request)


@pytest.fixture
def plugin() -> Plugin:
    return Plugin()


@pytest.fixture
def answer(plugin: Plugin, tmp_path: Path) -> Iterator[Any]:
    registry = Registry()
    registry.load("golden", plugin, "the tests")
    service = CniService(registry, Runner(), Attachments(tmp_path / "attachments"), Spool(tmp_path / "spool"))
    # setns(2) into the namespace that a thread is in already needs no new one; the codec wants two that differ.
    host = Netns.current()

    seen: list[list[bytes]] = []

    def ask(verb: str, config: Any, **env: str | None) -> Reply:
        merged = {"CNI_COMMAND": verb, **ENV, **env}
        stdin = config if isinstance(config, bytes) else json.dumps(config).encode()
        frame = Frame("cni", "/opt/cni/bin/golden", env={k: v for k, v in merged.items() if v is not None}, stdin=stdin)
        other = Netns(os.open("/proc/self/ns/uts", os.O_RDONLY), "/ns")
        reply = asyncio.run(service.handle(frame, (Netns(os.dup(host.fd), host.path), other)))
        seen.append(re.findall(rb"request ([0-9a-f]{8})", reply.stdout))
        return replace(reply, stdout=re.sub(rb"request [0-9a-f]{8}", f"request {ID}".encode(), reply.stdout))

    ask.ids = seen  # type: ignore[attr-defined]  # what `ask` has replaced, call by call
    yield ask
    host.close()


def config(version: str, **more: Any) -> dict[str, Any]:
    return {"cniVersion": version, "name": "net", "type": "golden", **more}


@pytest.mark.node
@pytest.mark.parametrize("version", VERSIONS)
def test_add_prints_one_result_in_the_version_of_its_configuration(answer: Any, version: str) -> None:
    reply = answer("ADD", config(version))
    assert reply == Reply(0, f'{{"cniVersion": "{version}", {FORMS[version]}}}\n'.encode())


@pytest.mark.node
@pytest.mark.parametrize("version", VERSIONS)
def test_a_chained_add_prints_the_previous_result(answer: Any, version: str) -> None:
    previous = json.loads(f'{{"cniVersion": "{version}", {FORMS[version]}}}')
    reply = answer("ADD", config(version, prevResult=previous))
    assert reply == Reply(0, f'{{"cniVersion": "{version}", {FORMS[version]}}}\n'.encode())


@pytest.mark.node
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("verb", ["DEL", "CHECK", "GC", "STATUS"])
def test_every_other_verb_prints_nothing(answer: Any, plugin: Plugin, verb: str, version: str) -> None:
    since = {"DEL": "0.1.0", "CHECK": "0.4.0"}.get(verb, "1.1.0")
    previous = json.loads(f'{{"cniVersion": "{version}", {FORMS[version]}}}')
    reply = answer(verb, config(version, prevResult=previous))
    if VERSIONS.index(version) >= VERSIONS.index(since):
        assert reply == Reply(0)
        assert len(plugin.seen) == 1
    else:
        details = f"cniVersion is {version}, {since} is needed"
        text = f'"code": 1, "msg": "config version does not allow {verb}", "details": "{details}"'
        assert reply == Reply(1, f'{{"cniVersion": "{version}", {with_id(text)}}}\n'.encode())
        assert plugin.seen == []


@pytest.mark.node
@pytest.mark.parametrize("version", VERSIONS)
def test_an_error_is_printed_on_stdout_with_its_version(answer: Any, plugin: Plugin, version: str) -> None:
    plugin.error = Exhausted("no address is left", details="254 of 254 in use")
    reply = answer("ADD", config(version))
    text = '"code": 11, "msg": "no address is left", "details": "254 of 254 in use"'
    assert reply == Reply(1, f'{{"cniVersion": "{version}", {with_id(text)}}}\n'.encode())


@pytest.mark.node
def test_limited_connectivity_is_51(answer: Any, plugin: Plugin) -> None:
    plugin.error = LimitedConnectivity("the bridge is down")
    reply = answer("STATUS", config("1.1.0"))
    text = with_id('"code": 51, "msg": "the bridge is down"')
    assert reply == Reply(1, f'{{"cniVersion": "1.1.0", {text}}}\n'.encode())


@pytest.mark.node
def test_a_status_that_fails_again_for_the_same_reason_says_the_same(answer: Any, plugin: Plugin) -> None:
    # Runtimes pass the text on to kubelet, which writes the node's condition whenever it changes.
    for reason in ("the bridge is down", "the bridge is down", "the firewall is down"):
        plugin.error = LimitedConnectivity(reason)
        answer("STATUS", config("1.1.0"))
    first, second, third = answer.ids
    assert first == second != third


@pytest.mark.parametrize(
    ("verb", "stdin", "env", "text"),
    [
        ("ADD", config("1.0.0"), {"CNI_NETNS": None, "CNI_PATH": ""}, b'"cniVersion": "1.0.0", "code": 4, "msg": "required env variables [CNI_NETNS,CNI_PATH] missing"'),  # noqa: E501 - the answer as it is
        ("FLY", config("1.0.0"), {}, b'"cniVersion": "1.0.0", "code": 4, "msg": "unknown CNI_COMMAND: FLY"'),
        ("ADD", {"cniVersion": "1.0.0"}, {}, b'"cniVersion": "1.0.0", "code": 7, "msg": "missing network name"'),
        ("ADD", config("1.0.0", name="a b"), {}, b'"cniVersion": "1.0.0", "code": 7, "msg": "invalid characters found in network name", "details": "a b"'),  # noqa: E501 - the answer as it is
        ("ADD", b"[]", {}, b'"code": 6, "msg": "error unmarshall network config: it is not an object"'),
        ("CHECK", config("1.0.0"), {}, b'"cniVersion": "1.0.0", "code": 7, "msg": "Required prevResult missing"'),
        ("ADD", config("2.0.0"), {}, b'"code": 1, "msg": "incompatible CNI versions", "details": "config is \\"2.0.0\\", plugin supports [\\"0.1.0\\" \\"0.2.0\\" \\"0.3.0\\" \\"0.3.1\\" \\"0.4.0\\" \\"1.0.0\\" \\"1.1.0\\"]"'),  # noqa: E501 - the answer as it is
    ],
)  # fmt: skip
def test_a_call_that_is_wrong_is_refused_in_the_words_that_runtimes_know(
    answer: Any, plugin: Plugin, verb: str, stdin: Any, env: dict[str, str | None], text: bytes
) -> None:
    assert answer(verb, stdin, **env) == Reply(1, b"{" + with_id(text.decode()).encode() + b"}\n")
    assert plugin.seen == []


def test_version_lists_every_version(answer: Any) -> None:
    reply = answer("VERSION", b"never read")
    listed = b'["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]'
    assert reply == Reply(0, b'{"cniVersion": "1.1.0", "supportedVersions": ' + listed + b"}\n")
