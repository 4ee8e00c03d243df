"""CNI on the wire: environment and stdin to a request value, a result or an error to stdout.

Owns: every rule of the specification about what a call must carry, with the order, codes and texts of the Go library
("skel"), because runtimes and people know those.
Refuses: I/O, routing, and checks of keys that the specification does not name: those belong to the plugin.

Keys are matched regardless of case, as Go does. Regular expressions match whole strings, since Python's `$` accepts a
trailing newline and Go's does not.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nodeplug.cni import results
from nodeplug.cni.results import VERSIONS
from nodeplug.contract import cni_args
from nodeplug.contract.errors import (
    IncompatibleVersion,
    InvalidEnvironment,
    InvalidNetns,
    InvalidRequest,
    PluginError,
    Undecodable,
    wire,
)
from nodeplug.contract.inputs import EXEC_FRAME
from nodeplug.contract.netns import Netns
from nodeplug.contract.values import CniAdd, CniCheck, CniDel, CniGc, CniRequest, CniResult, CniStatus, ValidAttachment
from nodeplug.exec.frame import Frame

_ATTACHMENT: Final = ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH")
_VALID: Final = ("cni.dev/valid-attachments", "cni.dev/attachments")
_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
_ID_LIMIT: Final = 200
"""Characters of a container id: plugins name files by it and the interface, and a name has at most 255 bytes."""
_IFNAME_LIMIT: Final = 15
_OLDEST: Final = "0.1.0"


@dataclass(frozen=True, slots=True)
class Verb:
    """The variables that a verb requires, in the order in which errors name them, and the first version that has it."""

    required: tuple[str, ...]
    since: str = _OLDEST


VERBS: Final[Mapping[str, Verb]] = {
    "ADD": Verb(_ATTACHMENT),
    "CHECK": Verb(_ATTACHMENT, "0.4.0"),
    "DEL": Verb(("CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH")),
    "GC": Verb(("CNI_PATH",), "1.1.0"),
    "STATUS": Verb(("CNI_PATH",), "1.1.0"),
    "VERSION": Verb(()),
}


def decode(frame: Frame, namespaces: Sequence[Netns], *, uses_netns: bool = True) -> CniRequest:
    """Read a call of any verb but VERSION.

    Args:
        frame: of the call.
        namespaces: the caller's own, then that of CNI_NETNS if it was opened.
        uses_netns: as the claim says: whether CNI_NETNS must be a namespace.

    Raises:
        InvalidEnvironment: a variable is missing or malformed.
        Undecodable: stdin, or a part of it, is not what the specification says.
        InvalidRequest: a missing or bad network name; CHECK without prevResult.
        IncompatibleVersion: the configuration's version is not served, or has no such verb.
        InvalidNetns: a required namespace is missing, or is the caller's own.
    """
    command = _check_environment(frame.env)
    config = _read_config(frame.stdin)
    verb = VERBS.get(command)
    if verb is None or command == "VERSION":
        raise InvalidEnvironment(f"unknown CNI_COMMAND: {command}")
    version = _check_version(config, command, verb)
    if not namespaces:
        raise InvalidNetns("the caller's network namespace did not arrive with the call; install the scripts again")
    common: dict[str, Any] = {
        "claim": frame.name,
        "network": _string(config, "name"),
        "version": version,
        "config": config,
        "path": tuple(part for part in frame.env["CNI_PATH"].split(":") if part),
        "host_netns": namespaces[0],
    }
    if command == "GC":
        return CniGc(valid=_valid_attachments(config), **common)
    if command == "STATUS":
        return CniStatus(**common)
    if len(namespaces) < 2 and not uses_netns and command != "DEL":
        namespaces = (namespaces[0], Netns.unopened(frame.env["CNI_NETNS"]))
    return _decode_attachment(command, frame.env, namespaces, common)


def _decode_attachment(
    command: str, env: Mapping[str, str], namespaces: Sequence[Netns], common: Mapping[str, Any]
) -> CniRequest:
    netns = namespaces[1] if len(namespaces) > 1 else None
    overridden = env.get("CNI_NETNS_OVERRIDE", "").upper() in {"1", "TRUE"}
    if command in {"ADD", "DEL"} and netns is not None and not overridden:
        _refuse_own(namespaces[0], netns)
    rest: dict[str, Any] = {
        "container_id": env["CNI_CONTAINERID"],
        "ifname": env["CNI_IFNAME"],
        "args": cni_args.pairs(env.get("CNI_ARGS", "")),
        "args_text": env.get("CNI_ARGS", ""),
        "netns": netns,
        **common,
    }
    if command == "DEL":
        # A failing DEL keeps the pod forever, so an unreadable result is ignored.
        return CniDel(prev_result=_prev_result(common, forgiving=True), **rest)
    if netns is None:
        raise InvalidNetns(
            f"failed to open netns {json.dumps(env['CNI_NETNS'], ensure_ascii=False)}",
            details="CNI_NETNS is not a network namespace, or cannot be opened by the caller",
        )
    prev_result = _prev_result(common)
    if command == "ADD":
        return CniAdd(prev_result=prev_result, **rest)
    if prev_result is None:
        raise InvalidRequest("Required prevResult missing")
    return CniCheck(prev_result=prev_result, **rest)


def _check_environment(env: Mapping[str, str]) -> str:
    command = env.get("CNI_COMMAND", "")
    verb = VERBS.get(command, Verb(()))
    missing = [name for name in ("CNI_COMMAND", *verb.required) if not env.get(name)]
    container_id = env.get("CNI_CONTAINERID", "")
    if "CNI_CONTAINERID" in verb.required and container_id and not _NAME.fullmatch(container_id):
        raise InvalidEnvironment("invalid characters in containerID", details=container_id)
    if len(container_id) > _ID_LIMIT and command == "ADD":  # all else must be able to end what an older daemon began
        raise InvalidEnvironment(
            "container id is too long",
            details=f"it has {len(container_id)} characters, and {_ID_LIMIT} at most are taken",
        )
    if "CNI_IFNAME" in verb.required and "CNI_IFNAME" not in missing:
        _check_ifname(env["CNI_IFNAME"])
    if missing:
        raise InvalidEnvironment(f"required env variables [{','.join(missing)}] missing")
    return command


def is_void(frame: Frame) -> bool:
    """Whether a DEL has a name that no ADD can have had, because it is not text: it has nothing to delete."""
    names = (frame.env.get(name, "") for name in ("CNI_CONTAINERID", "CNI_IFNAME"))
    return frame.env.get("CNI_COMMAND") == "DEL" and not all(map(_is_text, names))


def _is_text(name: str) -> bool:
    return name.encode(errors="replace") == name.encode(errors="surrogateescape")


def _check_ifname(text: str) -> None:
    if not _is_text(text):
        raise InvalidEnvironment("interface name is not UTF-8", details=repr(os.fsencode(text)))
    if len(text.encode(errors="surrogateescape")) > _IFNAME_LIMIT:
        raise InvalidEnvironment(
            "interface name is too long", details=f"interface name should be less than {_IFNAME_LIMIT + 1} characters"
        )
    if text in {".", ".."}:
        raise InvalidEnvironment("interface name is . or ..")
    if any(char in "/:" or char.isspace() for char in text):
        raise InvalidEnvironment("interface name contains / or : or whitespace characters")


def _parse(stdin: bytes) -> Any:
    try:
        return EXEC_FRAME.parse(stdin.decode("utf-8", "replace"))
    except json.JSONDecodeError as error:
        at_end = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated string")
        said = "unexpected end of JSON input" if at_end else str(error)
        raise Undecodable(f"error unmarshall network config: {said}", details=str(error) if at_end else "") from None
    except ValueError as error:
        raise Undecodable(f"error unmarshall network config: {error}") from None


def _read_config(stdin: bytes) -> Mapping[str, Any]:
    document = _parse(stdin)
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise Undecodable("error unmarshall network config: it is not an object")
    name = _string(document, "name")
    if not name:
        raise InvalidRequest("missing network name")
    if not _NAME.fullmatch(name):
        raise InvalidRequest("invalid characters found in network name", details=name)
    return document


def _look(config: Mapping[str, Any], key: str) -> tuple[bool, Any]:
    """Find a key regardless of case; the last of several wins, as in Go."""
    found = [value for name, value in config.items() if name.lower() == key]
    return bool(found), found[-1] if found else None


def _string(config: Mapping[str, Any], key: str) -> str:
    value = _look(config, key.lower())[1]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Undecodable(f"error unmarshall network config: {key} must be a string, found {type(value).__name__}")
    return value


def _check_version(config: Mapping[str, Any], command: str, verb: Verb) -> str:
    version = _string(config, "cniVersion") or _OLDEST
    if version not in VERSIONS:
        newer = verb.since != _OLDEST and _numbers(version) > _numbers(VERSIONS[-1])
        listed = " ".join(map(json.dumps, VERSIONS))
        raise IncompatibleVersion(
            f"plugin version does not allow {command}" if newer else "incompatible CNI versions",
            details=f"config is {json.dumps(version)}, plugin supports [{listed}]",
        )
    if VERSIONS.index(version) < VERSIONS.index(verb.since):
        raise IncompatibleVersion(
            f"config version does not allow {command}", details=f"cniVersion is {version}, {verb.since} is needed"
        )
    return version


def _numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers, for comparison; one that is no version comes first."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdecimal() for part in parts) else ()


def _refuse_own(host: Netns, netns: Netns) -> None:
    # Before the plugin runs: the Go library checks after printing the result, and then prints a second document.
    if host.identity == netns.identity:
        raise InvalidNetns(
            "plugin's netns and netns from CNI_NETNS should not be the same", details=f"CNI_NETNS is {netns.path}"
        )


def _prev_result(common: Mapping[str, Any], *, forgiving: bool = False) -> CniResult | None:
    document = _look(common["config"], "prevresult")[1]
    if document is None:
        return None
    try:
        return results.decode(document, common["version"])
    except (Undecodable, IncompatibleVersion) as error:
        if forgiving:
            return None
        raise type(error)(f"could not parse prevResult: {error.message}", details=error.details) from None


def _valid_attachments(config: Mapping[str, Any]) -> tuple[ValidAttachment, ...] | None:
    """Return the list: empty for null, which runtimes send when nothing is attached; None if it is missing."""
    for key in _VALID:
        present, value = _look(config, key)
        if present:
            break
    else:
        return None
    if value is not None and not isinstance(value, list):
        raise Undecodable(f"{key} must be a list, found {type(value).__name__}")
    return tuple(_valid_attachment(key, item) for item in value or ())


def _valid_attachment(key: str, item: Any) -> ValidAttachment:
    if not isinstance(item, dict):
        raise Undecodable(f"{key} must hold objects, found {type(item).__name__}")
    container_id, ifname = _string(item, "containerID"), _string(item, "ifname")
    if not container_id or not ifname:
        raise Undecodable(f"{key} must name containerID and ifname in each entry")
    return ValidAttachment(container_id=container_id, ifname=ifname)


def encode_result(result: CniResult, version: str) -> bytes:
    """Write the result of ADD; see `results.encode`."""
    return json.dumps(results.encode(result, version)).encode() + b"\n"


def encode_error(error: PluginError, version: str = "") -> bytes:
    """Write an error.

    Its request id goes into `details` unless a text already has it; a version that is not served is left out.
    """
    document: dict[str, Any] = {"cniVersion": version} if version in VERSIONS else {}
    document |= {"code": wire(error).cni, "msg": error.message}
    known = not error.request or error.request in document["msg"] + error.details
    mention = "" if known else f"request {error.request}"
    details = "; ".join(filter(None, (error.details, mention)))
    if details:
        document["details"] = details
    return json.dumps(document).encode() + b"\n"


def encode_versions() -> bytes:
    """Write the result of VERSION."""
    return json.dumps({"cniVersion": VERSIONS[-1], "supportedVersions": VERSIONS}).encode() + b"\n"


def attachment_of(frame: Frame) -> tuple[str, str, str]:
    """Return (network, container id, interface), checked as in `decode`."""
    _check_environment(frame.env)
    config = _read_config(frame.stdin)
    return _string(config, "name"), frame.env["CNI_CONTAINERID"], frame.env["CNI_IFNAME"]


def version_of(stdin: bytes) -> str:
    """Return the version of a configuration for an error about it, or an empty string."""
    try:
        document = _parse(stdin)
        return (_string(document, "cniVersion") or _OLDEST) if isinstance(document, dict) else ""
    except Undecodable:
        return ""
