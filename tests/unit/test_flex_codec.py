"""The FlexVolume codec is total: any argv becomes a value or a PluginError, and secrets stay out of texts."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeplug.contract.errors import Exhausted, InvalidRequest, NotSupported, PluginError, TryAgain, Undecodable
from nodeplug.contract.values import Secrets, VolumeClaim
from nodeplug.flex import codec
from nodeplug.flex.commands import VERBS, Detach, IsAttached, Mount, verb_of
from nodeplug.testing.flex_caller.argv import encode_argv
from nodeplug.volumes.masking import redact

JSON = '{"size": "64Mi"}'


def options(**extra: Any) -> str:
    return json.dumps(extra)


def decode_mount(pairs: dict[str, Any]) -> Mount:
    command = codec.decode(["mount", "/pods/a/v", json.dumps(pairs)])
    assert isinstance(command, Mount)
    return command


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(
    [
        "size",
        "kubernetes.io/fsType",
        "kubernetes.io/readwrite",
        "kubernetes.io/secret/password",
        "kubernetes.io/mounterArgs.FsGroup",
        "kubernetes.io/pod.uid",
    ]
)
texts = (
    st.text(st.characters(exclude_categories=()))
    | st.sampled_from(["/pods/a/v", "node-1", "ro", "rw", "12", "", "{}"])
    | st.dictionaries(st.text() | keys, json_values).map(json.dumps)
    | st.dictionaries(keys, st.sampled_from(["ro", "c2VjcmV0", "12", "x"])).map(json.dumps)
)
argvs = st.builds(
    lambda verb, rest: [verb, *rest], st.sampled_from([*VERBS, "", "frobnicate"]), st.lists(texts, max_size=5)
)


@given(argvs | st.lists(texts))
def test_decode_of_anything_is_a_value_or_a_plugin_error(argv: list[str]) -> None:
    try:
        command = codec.decode(argv)
    except PluginError as error:
        json.loads(codec.encode_error(error))
        return
    assert verb_of(command) == argv[0]


@given(argvs)
def test_encoding_a_decoded_value_and_decoding_it_again_changes_nothing(argv: list[str]) -> None:
    try:
        command = codec.decode(argv)
    except PluginError:
        return
    written = encode_argv(command)
    assert codec.decode(written) == command
    assert encode_argv(codec.decode(written)) == written


@given(st.dictionaries(st.text(), st.binary(min_size=4)), st.text())
def test_no_secret_of_four_bytes_survives_in_a_message(values: dict[str, bytes], text: str) -> None:
    message = text + " ".join(base64.b64encode(value).decode() for value in values.values())
    shown = redact(message, Secrets(values))
    assert not any(base64.b64encode(value).decode() in shown for value in values.values())


def test_a_deeply_nested_document_is_refused_as_undecodable() -> None:
    with pytest.raises(Undecodable, match="not JSON"):
        codec.decode(["mount", "/a/b", '{"a":' + "[" * 100_000])


def test_a_huge_number_is_refused_as_undecodable() -> None:
    with pytest.raises(Undecodable):
        codec.decode(["mount", "/a/b", '{"a":' + "9" * 10_000 + "}"])


@pytest.mark.parametrize("value", [1, True, None, ["x"], {"a": "b"}])
def test_an_option_that_is_no_string_is_refused_by_its_key(value: Any) -> None:
    with pytest.raises(Undecodable, match="option 'size' of mount must be a string"):
        decode_mount({"size": value})


def test_an_option_with_a_nul_character_is_refused() -> None:
    with pytest.raises(Undecodable, match="option 'path'"):
        decode_mount({"path": "a\0b"})


def test_an_option_with_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(Undecodable, match="not UTF-8"):
        codec.decode(["mount", "/a/b", '{"path": "\\ud800"}'])


def test_kubelets_keys_are_taken_out_of_the_drivers_options() -> None:
    command = decode_mount({"size": "1Gi", "kubernetes.io/fsType": "xfs", "kubernetes.io/somethingNew": "x"})
    assert command.options.own == {"size": "1Gi"}
    assert command.options.fs_type == "xfs"


def test_secrets_are_decoded_from_base64() -> None:
    command = decode_mount({"kubernetes.io/secret/password": base64.b64encode(b"hunter2\n").decode()})
    assert command.options.secrets["password"] == b"hunter2\n"


def test_a_secret_that_is_not_base64_is_named_by_its_key_alone() -> None:
    with pytest.raises(Undecodable, match=r"kubernetes\.io/secret/password") as caught:
        decode_mount({"kubernetes.io/secret/password": "hunter2!"})
    assert "hunter2" not in str(caught.value)


def test_the_repr_of_a_command_shows_no_secret() -> None:
    command = decode_mount({"kubernetes.io/secret/password": base64.b64encode(b"hunter2").decode()})
    assert "hunter2" not in repr(command)


def test_json_that_is_cut_off_is_refused_without_repeating_it() -> None:
    with pytest.raises(Undecodable, match="not JSON at character") as caught:
        codec.decode(["mount", "/a/b", '{"password": "hunter2'])
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", ["kubernetes.io/mounterArgs.FsGroup", "kubernetes.io/fsGroup"])
def test_the_fs_group_is_read_from_either_key(key: str) -> None:
    assert decode_mount({key: "2000"}).options.fs_group == 2000


@pytest.mark.parametrize("text", ["-1", "2147483648", "١٢", "0x10", "1e3"])
def test_an_fs_group_that_is_no_group_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="group number"):
        decode_mount({"kubernetes.io/fsGroup": text})


def test_readwrite_accepts_nothing_but_rw_and_ro() -> None:
    with pytest.raises(InvalidRequest, match="readwrite"):
        decode_mount({"kubernetes.io/readwrite": "rw,exec"})


@pytest.mark.parametrize("path", ["relative/v", "", "/", "//", "/pods/../etc", "/pods/./v"])
def test_a_target_that_is_no_plain_absolute_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest, match="absolute path"):
        codec.decode(["unmount", path])


def test_isattached_is_understood_in_both_orders() -> None:
    new = codec.decode(["isattached", JSON, "node-1"])
    assert new == codec.decode(["isattached", "node-1", JSON])
    assert isinstance(new, IsAttached)
    assert (new.node, new.options.own) == ("node-1", {"size": "64Mi"})


def test_mount_is_understood_with_and_without_a_device() -> None:
    new = decode_mount({"size": "64Mi"})
    assert codec.decode(["mount", "/pods/a/v", "/dev/sdb", JSON]) == Mount("/pods/a/v", new.options, "/dev/sdb")


def test_detach_takes_the_volume_name_before_the_node() -> None:
    assert codec.decode(["detach", "pv-1", "node-1"]) == Detach("pv-1", "node-1")


def test_an_unknown_verb_is_not_supported() -> None:
    with pytest.raises(NotSupported):
        codec.decode(["snapshot", JSON])


def test_a_wrong_number_of_arguments_names_the_expected_ones() -> None:
    with pytest.raises(InvalidRequest, match="mount takes target options or target device options; 1 arguments"):
        codec.decode(["mount", "/a/b"])


@pytest.mark.parametrize("text", ["-1", "1.5", "", "1e9", "99999999999999999999"])
def test_a_size_that_is_no_number_of_bytes_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="whole number of bytes"):
        codec.decode(["expandfs", JSON, "/dev/sdb", "/a/b", text, "1"])


def test_only_not_supported_is_told_as_not_supported() -> None:
    told = {
        cls.__name__: json.loads(codec.encode_error(cls("m")))["status"] for cls in (NotSupported, TryAgain, Exhausted)
    }
    assert told == {"NotSupported": "Not supported", "TryAgain": "Failure", "Exhausted": "Failure"}


@pytest.mark.parametrize("fs_group", ["driver", "none"])
def test_capabilities_follow_the_hooks_and_the_claim(fs_group: Any) -> None:
    claim = VolumeClaim("acme/disk", fs_group=fs_group, selinux_relabel=False)
    document = json.loads(codec.capabilities_file(claim, frozenset({"volume_stage", "volume_expand"})))
    assert document == {
        "status": "Success",
        "capabilities": {
            "attach": False,
            "fsGroup": False,
            "selinuxRelabel": False,
            "supportsMetrics": True,
            "requiresFSResize": True,
        },
    }


SECRET = '{"kubernetes.io/secret/password": "aHVudGVyMg=="}'


@pytest.mark.parametrize(
    "argv",
    [
        (SECRET,),
        ("umount", SECRET),
        ("unmount", SECRET),
        ("unmount", "hunter2/aHVudGVyMg=="),
        ("mount", SECRET, "/target"),
        ("mount", "/target"),
        ("detach", SECRET, "node"),
        ("attach", "aHVudGVyMg==", SECRET),
        ("waitforattach", SECRET, "{}"),
        ("mountdevice", "/target", SECRET, "{}"),
        ("expandvolume", "{}", "/target", SECRET, "1"),
        ("expandvolume", "{}", "/target", "hunter2", "1"),
    ],
)
def test_an_argument_in_the_wrong_place_is_refused_without_being_repeated(argv: tuple[str, ...]) -> None:
    with pytest.raises(PluginError) as refusal:
        codec.decode(argv)
    assert "aHVudGVyMg" not in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_what_is_no_verb_has_no_name_in_logs_and_records() -> None:
    assert [codec.verb_in(argv) for argv in ((), ("mount", "/x"), (SECRET,))] == [
        "(no verb)",
        "mount",
        "(unknown verb)",
    ]
