"""Whatever arrives, a codec answers a value or an error of the tree; what it writes, it reads."""

import json
from contextlib import suppress
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nodeplug import CniDns, CniInterface, CniIp, CniResult, CniRoute, Netns, PluginError
from nodeplug.cni import codec, results
from nodeplug.exec.frame import Frame, Reply, body_size

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
ENV_NAME = st.text(st.characters(exclude_characters="\0=", exclude_categories=["Cs"]), min_size=1, max_size=20)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
FRAMES = st.builds(
    Frame,
    TEXT,
    TEXT,
    st.lists(TEXT, max_size=3).map(tuple),
    st.dictionaries(ENV_NAME, TEXT, max_size=4),
    st.binary(max_size=50),
)


def networks(bits: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, 2**bits - 1), st.integers(0, bits))


ADDRESSES = networks(32).map(IPv4Interface) | networks(128).map(IPv6Interface)
NETWORKS = networks(32).map(lambda pair: IPv4Network(pair, strict=False)) | networks(128).map(
    lambda pair: IPv6Network(pair, strict=False)
)
GATEWAYS = st.none() | st.ip_addresses()
NUMBERS = st.none() | st.integers(0, 2**32 - 1)
TEXTS = st.lists(TEXT).map(tuple)
RESULTS = st.builds(
    CniResult,
    interfaces=st.lists(
        st.builds(CniInterface, TEXT, mac=TEXT, sandbox=TEXT, mtu=st.integers(0, 65535), socket_path=TEXT, pci_id=TEXT),
        max_size=3,
    ).map(tuple),
    ips=st.lists(st.builds(CniIp, ADDRESSES, gateway=GATEWAYS, interface=NUMBERS), max_size=3).map(tuple),
    routes=st.lists(
        st.builds(
            CniRoute, NETWORKS, gw=GATEWAYS, **dict.fromkeys(("mtu", "advmss", "priority", "table", "scope"), NUMBERS)
        ),
        max_size=3,
    ).map(tuple),
    dns=st.builds(CniDns, nameservers=TEXTS, domain=TEXT, search=TEXTS, options=TEXTS),
)
VERSION = st.sampled_from(results.VERSIONS)
# Shaped like calls, so that the rules behind the first ones are reached too.
CONFIGS = st.fixed_dictionaries(
    {"name": TEXT | st.just("net") | JSON, "cniVersion": VERSION | TEXT | JSON},
    optional={
        "prevResult": JSON | st.fixed_dictionaries({}, optional={"ips": JSON, "routes": JSON, "dns": JSON}),
        "cni.dev/valid-attachments": JSON,
        "cni.dev/attachments": JSON,
    },
)
ENVS = st.fixed_dictionaries(
    {"CNI_COMMAND": st.sampled_from([*codec.VERBS]) | TEXT},
    optional={
        "CNI_CONTAINERID": st.just("c1") | TEXT,
        "CNI_NETNS": TEXT,
        "CNI_IFNAME": st.just("eth0") | TEXT,
        "CNI_ARGS": TEXT | st.just("A=1;B=2"),
        "CNI_PATH": st.just("/opt/cni/bin") | TEXT,
    },
)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_an_error(data: bytes) -> None:
    for decode in (Frame.decode, Reply.decode):
        with suppress(PluginError):
            decode(data)


@given(st.binary(min_size=16, max_size=16))
def test_any_header_has_a_size_or_is_an_error(header: bytes) -> None:
    with suppress(PluginError):
        assert body_size(header) >= 0


@given(FRAMES)
def test_a_frame_is_read_as_it_was_written(frame: Frame) -> None:
    assert Frame.decode(frame.encode()) == frame


@given(st.integers(0, 255), st.binary(), st.binary())
def test_a_reply_is_read_as_it_was_written(status: int, out: bytes, err: bytes) -> None:
    assert Reply.decode(Reply(status, out, err).encode()) == Reply(status, out, err)


@given(ENVS, CONFIGS.map(lambda config: json.dumps(config).encode()) | st.binary(max_size=60))
def test_any_call_is_a_request_or_an_error_that_can_be_said(env: dict[str, str], stdin: bytes) -> None:
    try:
        codec.decode(Frame("cni", "/opt/cni/bin/x", env=env, stdin=stdin), (Netns(-1, "own"),))
    except PluginError as error:
        document = json.loads(codec.encode_error(error, codec.version_of(stdin)))
        assert document["code"] > 0
        assert document["msg"]


@given(JSON, VERSION | TEXT)
def test_any_document_is_a_result_or_an_error(document: Any, version: str) -> None:
    with suppress(PluginError):
        results.decode(document, version)


@given(RESULTS)
def test_the_newest_version_reads_back_every_result(result: CniResult) -> None:
    written = json.loads(codec.encode_result(result, "1.1.0"))
    assert results.decode(written, "1.1.0") == result


@given(RESULTS, VERSION)
def test_writing_what_was_read_changes_nothing(result: CniResult, version: str) -> None:
    try:
        written = results.encode(result, version)
    except PluginError:
        assert not result.ips
        assert version in results.FAMILIES[0]
        return
    assert results.encode(results.decode(written, version), version) == written
