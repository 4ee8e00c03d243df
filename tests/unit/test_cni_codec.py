"""The CNI codec: what a call must carry."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from nodeplug import (
    CniAdd,
    CniCheck,
    CniDel,
    CniGc,
    CniRequest,
    CniStatus,
    DelegateFailed,
    IncompatibleVersion,
    InvalidEnvironment,
    InvalidNetns,
    InvalidRequest,
    Netns,
    NotReady,
    PluginError,
    Undecodable,
)
from nodeplug.cni import codec
from nodeplug.cni.results import VERSIONS
from nodeplug.exec.frame import Frame

ENV = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/ns",
    "CNI_IFNAME": "eth0",
    "CNI_PATH": "/opt/cni/bin::/usr/lib/cni",
}
CONFIG = {"cniVersion": "1.0.0", "name": "net", "type": "bridge"}
PREVIOUS = {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]}


@pytest.fixture
def namespaces() -> Iterator[tuple[Netns, Netns]]:
    """Two descriptors that differ; the codec looks at their identity alone."""
    pair = (
        Netns(os.open("/proc/self/ns/net", os.O_RDONLY), "own"),
        Netns(os.open("/proc/self/ns/uts", os.O_RDONLY), "/ns"),
    )
    yield pair
    for namespace in pair:
        namespace.close()


def frame(config: Any = CONFIG, **env: str | None) -> Frame:
    stdin = config if isinstance(config, bytes) else json.dumps(config).encode()
    merged = {name: value for name, value in {**ENV, **env}.items() if value is not None}
    return Frame("cni", "/opt/cni/bin/nodeplug-bridge", env=merged, stdin=stdin)


def test_an_add_carries_everything(namespaces: tuple[Netns, Netns]) -> None:
    request = codec.decode(frame({**CONFIG, "mtu": 9000, "prevResult": PREVIOUS}, CNI_ARGS="A=1;B="), namespaces)
    assert isinstance(request, CniAdd)
    assert (request.claim, request.network, request.version) == ("nodeplug-bridge", "net", "1.0.0")
    assert (request.container_id, request.ifname, request.args) == ("c1", "eth0", {"A": "1", "B": ""})
    assert request.path == ("/opt/cni/bin", "/usr/lib/cni")
    assert (request.host_netns, request.netns) == namespaces
    assert request.config["mtu"] == 9000
    assert request.prev_result is not None


@pytest.mark.parametrize(
    ("verb", "kind"), [("ADD", CniAdd), ("DEL", CniDel), ("CHECK", CniCheck), ("GC", CniGc), ("STATUS", CniStatus)]
)
def test_each_verb_has_its_own_value(verb: str, kind: type[CniRequest], namespaces: tuple[Netns, Netns]) -> None:
    config = {**CONFIG, "cniVersion": "1.1.0", "prevResult": {**PREVIOUS, "cniVersion": "1.1.0"}}
    assert type(codec.decode(frame(config, CNI_COMMAND=verb), namespaces)) is kind


@pytest.mark.parametrize(
    ("verb", "missing"),
    [
        ("ADD", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"),
        ("CHECK", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"),
        ("DEL", "CNI_CONTAINERID,CNI_IFNAME,CNI_PATH"),
        ("GC", "CNI_PATH"),
        ("STATUS", "CNI_PATH"),
        ("", "CNI_COMMAND"),
    ],
)
def test_all_missing_variables_are_listed_in_order(verb: str, missing: str, namespaces: tuple[Netns, Netns]) -> None:
    bare = Frame("cni", "/x", env={"CNI_COMMAND": verb, "CNI_IFNAME": ""}, stdin=b"")
    with pytest.raises(InvalidEnvironment, match=rf"required env variables \[{missing}\] missing"):
        codec.decode(bare, namespaces)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"CNI_CONTAINERID": "c/1"}, "invalid characters in containerID; c/1"),
        ({"CNI_CONTAINERID": "c1\n"}, "invalid characters in containerID"),
        ({"CNI_CONTAINERID": ".c1"}, "invalid characters in containerID"),
        ({"CNI_IFNAME": "a" * 16}, "interface name is too long"),
        ({"CNI_IFNAME": "ää" * 4}, "interface name is too long"),
        ({"CNI_IFNAME": "."}, r"interface name is \. or \.\."),
        ({"CNI_IFNAME": ".."}, r"interface name is \. or \.\."),
        ({"CNI_IFNAME": "a/b"}, "interface name contains / or : or whitespace characters"),
        ({"CNI_IFNAME": "a:b"}, "interface name contains"),
        ({"CNI_IFNAME": "a\u00a0b"}, "interface name contains"),
        ({"CNI_IFNAME": "eth0\n"}, "interface name contains"),
        ({"CNI_COMMAND": "FLY"}, "unknown CNI_COMMAND: FLY"),
    ],
)
def test_a_malformed_variable_is_code_4(env: dict[str, str], words: str, namespaces: tuple[Netns, Netns]) -> None:
    if "CNI_IFNAME" in env and env["CNI_IFNAME"].startswith("ä"):
        assert len(env["CNI_IFNAME"]) <= 15
    with pytest.raises(InvalidEnvironment, match=words) as caught:
        codec.decode(frame(**env), namespaces)
    assert json.loads(codec.encode_error(caught.value))["code"] == 4


@pytest.mark.parametrize("verb", ["ADD", "CHECK"])
def test_a_plugin_that_uses_no_namespace_gets_the_path_alone(verb: str, namespaces: tuple[Netns, Netns]) -> None:
    call = frame({**CONFIG, "prevResult": PREVIOUS}, CNI_COMMAND=verb, CNI_NETNS="/dev/null")
    request = codec.decode(call, namespaces[:1], uses_netns=False)
    assert isinstance(request, CniAdd | CniCheck)
    assert (request.netns.path, request.netns.is_open) == ("/dev/null", False)
    with pytest.raises(InvalidNetns, match="'/dev/null' was not opened"), request.netns.entered():
        pass


def test_a_plugin_that_uses_no_namespace_gets_the_one_there_is(namespaces: tuple[Netns, Netns]) -> None:
    request = codec.decode(frame(), namespaces, uses_netns=False)
    assert isinstance(request, CniAdd)
    assert request.netns == namespaces[1]


def test_bytes_in_a_text_that_are_not_utf_8_are_replaced_as_in_go(namespaces: tuple[Netns, Netns]) -> None:
    request = codec.decode(frame(b'{"cniVersion": "1.0.0", "name": "net", "note": "a\xffb"}'), namespaces)
    assert request.config["note"] == "a\ufffdb"
    with pytest.raises(Undecodable):
        codec.decode(frame(b'{"name": "net"}\xff'), namespaces)


def test_a_malformed_name_comes_before_the_list_of_missing_ones(namespaces: tuple[Netns, Netns]) -> None:
    with pytest.raises(InvalidEnvironment, match="invalid characters"):
        codec.decode(frame(CNI_CONTAINERID="/", CNI_PATH=None), namespaces)


def test_an_unknown_command_is_named_after_the_configuration_was_read(namespaces: tuple[Netns, Netns]) -> None:
    with pytest.raises(Undecodable):
        codec.decode(frame(b"{", CNI_COMMAND="FLY"), namespaces)


def test_gc_ignores_variables_that_it_does_not_need(namespaces: tuple[Netns, Netns]) -> None:
    request = codec.decode(
        frame({**CONFIG, "cniVersion": "1.1.0"}, CNI_COMMAND="GC", CNI_CONTAINERID="///"), namespaces
    )
    assert isinstance(request, CniGc)


@pytest.mark.parametrize(
    ("stdin", "kind", "words"),
    [
        (b"", Undecodable, "error unmarshall network config"),
        (b"nonsense", Undecodable, "error unmarshall network config"),
        (b'{"name": NaN}', Undecodable, "NaN is not JSON"),
        (b'"\xff"', Undecodable, "error unmarshall network config"),
        (b"[]", Undecodable, "it is not an object"),
        (b"[" * 200_000, Undecodable, "error unmarshall network config"),
        (b'{"name": 5}', Undecodable, "name must be a string"),
        (b'{"name": "n", "cniVersion": 1}', Undecodable, "cniVersion must be a string"),
        (b"null", InvalidRequest, "missing network name"),
        (b"{}", InvalidRequest, "missing network name"),
        (b'{"name": ""}', InvalidRequest, "missing network name"),
        (b'{"name": "a b"}', InvalidRequest, "invalid characters found in network name"),
        (b'{"name": "net\\n"}', InvalidRequest, "invalid characters found in network name"),
    ],
)
def test_a_wrong_configuration_is_refused(
    stdin: bytes, kind: type[PluginError], words: str, namespaces: tuple[Netns, Netns]
) -> None:
    with pytest.raises(kind, match=words):
        codec.decode(frame(stdin), namespaces)


def test_five_megabytes_of_configuration_are_read(namespaces: tuple[Netns, Netns]) -> None:
    request = codec.decode(frame({**CONFIG, "blob": "x" * 5_000_000}), namespaces)
    assert len(request.config["blob"]) == 5_000_000


def test_keys_match_without_regard_to_case_and_the_last_counts(namespaces: tuple[Netns, Netns]) -> None:
    request = codec.decode(frame(b'{"Name": "a", "CNIVERSION": "0.4.0", "name": "b"}'), namespaces)
    assert (request.network, request.version) == ("b", "0.4.0")


@pytest.mark.parametrize("said", [{}, {"cniVersion": ""}, {"cniVersion": None}])
def test_no_version_is_the_oldest(said: dict[str, Any], namespaces: tuple[Netns, Netns]) -> None:
    assert codec.decode(frame({"name": "net", **said}), namespaces).version == "0.1.0"


@pytest.mark.parametrize("version", ["1.2.0", "1.0", "v1.0.0", " 1.0.0", "0.3"])
def test_a_version_is_a_member_of_the_list_or_refused(version: str, namespaces: tuple[Netns, Netns]) -> None:
    with pytest.raises(IncompatibleVersion, match="incompatible CNI versions") as caught:
        codec.decode(frame({**CONFIG, "cniVersion": version}), namespaces)
    assert f'config is "{version}", plugin supports ["0.1.0"' in caught.value.details


@pytest.mark.parametrize(("verb", "since"), [("CHECK", "0.4.0"), ("GC", "1.1.0"), ("STATUS", "1.1.0")])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_verb_needs_its_version(verb: str, since: str, version: str, namespaces: tuple[Netns, Netns]) -> None:
    call = frame({**CONFIG, "cniVersion": version, "prevResult": {}}, CNI_COMMAND=verb)
    if VERSIONS.index(version) >= VERSIONS.index(since):
        assert codec.decode(call, namespaces).version == version
    else:
        with pytest.raises(IncompatibleVersion, match=f"config version does not allow {verb}"):
            codec.decode(call, namespaces)


def test_check_needs_prev_result(namespaces: tuple[Netns, Netns]) -> None:
    with pytest.raises(InvalidRequest, match="Required prevResult missing"):
        codec.decode(frame(CNI_COMMAND="CHECK"), namespaces)


@pytest.mark.parametrize("verb", ["ADD", "CHECK"])
@pytest.mark.parametrize(
    ("previous", "kind"), [([], Undecodable), ({"cniVersion": "0.4.0"}, IncompatibleVersion), ({"ips": 1}, Undecodable)]
)
def test_a_prev_result_that_cannot_be_read_is_an_error(
    verb: str, previous: Any, kind: type[PluginError], namespaces: tuple[Netns, Netns]
) -> None:
    with pytest.raises(kind, match="could not parse prevResult"):
        codec.decode(frame({**CONFIG, "prevResult": previous}, CNI_COMMAND=verb), namespaces)


def test_a_prev_result_that_cannot_be_read_does_not_stop_a_del(namespaces: tuple[Netns, Netns]) -> None:
    request = codec.decode(frame({**CONFIG, "prevResult": {"cniVersion": "0.2.0"}}, CNI_COMMAND="DEL"), namespaces)
    assert isinstance(request, CniDel)
    assert request.prev_result is None


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_the_callers_own_namespace_is_code_8(verb: str, namespaces: tuple[Netns, Netns]) -> None:
    own = namespaces[0]
    with pytest.raises(InvalidNetns, match="should not be the same"):
        codec.decode(frame(CNI_COMMAND=verb), (own, own))
    for override in ("1", "true", "TRUE"):
        assert codec.decode(frame(CNI_COMMAND=verb, CNI_NETNS_OVERRIDE=override), (own, own))


@pytest.mark.parametrize("override", ["0", "yes", ""])
def test_other_words_override_nothing(override: str, namespaces: tuple[Netns, Netns]) -> None:
    with pytest.raises(InvalidNetns):
        codec.decode(frame(CNI_NETNS_OVERRIDE=override), (namespaces[0], namespaces[0]))


def test_a_call_without_any_namespace_is_refused() -> None:
    with pytest.raises(InvalidNetns, match="did not arrive"):
        codec.decode(frame(), ())


@pytest.mark.parametrize(
    ("said", "valid"),
    [
        ({}, None),
        ({"cni.dev/valid-attachments": None}, ()),
        ({"cni.dev/valid-attachments": []}, ()),
        ({"CNI.dev/Valid-Attachments": [{"ContainerID": "c", "IfName": "e"}]}, (("c", "e"),)),
        ({"cni.dev/attachments": [{"containerID": "c", "ifname": "e"}]}, (("c", "e"),)),
        (
            {"cni.dev/attachments": [], "cni.dev/valid-attachments": [{"containerID": "c", "ifname": "e"}]},
            (("c", "e"),),
        ),
    ],
)
def test_gc_tells_absent_null_and_empty_apart(
    said: dict[str, Any], valid: Any, namespaces: tuple[Netns, Netns]
) -> None:
    request = codec.decode(frame({**CONFIG, "cniVersion": "1.1.0", **said}, CNI_COMMAND="GC"), namespaces)
    assert isinstance(request, CniGc)
    got = request.valid
    assert (None if got is None else tuple((item.container_id, item.ifname) for item in got)) == valid


@pytest.mark.parametrize("value", [{}, "x", [1], [{}], [{"containerID": "c"}], [{"containerID": "c", "ifname": 1}]])
def test_a_list_of_attachments_that_cannot_be_read_is_refused(value: Any, namespaces: tuple[Netns, Netns]) -> None:
    config = {**CONFIG, "cniVersion": "1.1.0", "cni.dev/valid-attachments": value}
    with pytest.raises(Undecodable):
        codec.decode(frame(config, CNI_COMMAND="GC"), namespaces)


@pytest.mark.parametrize(
    ("error", "version", "document"),
    [
        (NotReady("away"), "1.1.0", {"cniVersion": "1.1.0", "code": 50, "msg": "away"}),
        (NotReady("away"), "9.9.9", {"code": 50, "msg": "away"}),
        (DelegateFailed("no", code=123, details="why"), "", {"code": 123, "msg": "no", "details": "why"}),
        (PluginError("a \udcff b"), "", {"code": 999, "msg": "a \udcff b"}),
    ],
)
def test_an_error_is_one_json_document(error: PluginError, version: str, document: dict[str, Any]) -> None:
    assert json.loads(codec.encode_error(error, version)) == document


@pytest.mark.parametrize(
    ("stdin", "version"), [(b"{", ""), (b"[]", ""), (b"{}", "0.1.0"), (b'{"cniVersion":"1.0.0"}', "1.0.0")]
)
def test_the_version_for_an_error_is_found_when_there_is_one(stdin: bytes, version: str) -> None:
    assert codec.version_of(stdin) == version


def test_version_names_all_that_are_served() -> None:
    document = json.loads(codec.encode_versions())
    assert document == {"cniVersion": "1.1.0", "supportedVersions": list(VERSIONS)}
