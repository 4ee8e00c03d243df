"""FlexVolume on the wire: argv becomes one value per verb, and a driver status becomes one JSON object.

Owns: reading the arguments, kubelet's own option keys, and writing the driver status.
Refuses: I/O, and trust. Kubelet merges user options last, so they can override any `kubernetes.io/` key: every option
is checked here, and what it says about the pod is only a hint. Error messages name keys, never values: a value may be a
misplaced password.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from nodeplug.contract.errors import InvalidRequest, NotSupported, PluginError, Undecodable, wire, with_request
from nodeplug.contract.inputs import VOLUME_OPTIONS
from nodeplug.contract.values import Pod, Secrets, VolumeClaim
from nodeplug.flex.commands import VERBS, Command, VolumeOptions

PREFIX: Final = "kubernetes.io/"
CREDENTIAL: Final = "kubernetes.io/secret/"
_FS_GROUPS: Final = ("kubernetes.io/mounterArgs.FsGroup", "kubernetes.io/fsGroup")  # kubelet >= 1.15, and before
_GROUP_LIMIT: Final = (1 << 31) - 1
_SIZE_LIMIT: Final = (1 << 63) - 1


# --- argv ---------------------------------------------------------------------------------------------------------


def decode(argv: Sequence[str]) -> Command:
    """Read the arguments after the executable's name.

    Raises:
        NotSupported: the verb is not one of FlexVolume's.
        InvalidRequest: the number of arguments, a path, a size or an option is wrong.
        Undecodable: the JSON argument is not an object of strings, or a text is not UTF-8.
    """
    if not argv:
        raise InvalidRequest("no FlexVolume verb was given; expected one of " + ", ".join(VERBS))
    name, *texts = argv
    if name not in VERBS:
        raise NotSupported(f"the first of {len(argv)} arguments is not a FlexVolume verb; known: {', '.join(VERBS)}")
    form = _choose_form(name, texts)
    return VERBS[name].make(**{part: _PARTS[part](name, text) for part, text in zip(form, texts, strict=True)})


def _choose_form(verb: str, texts: list[str]) -> tuple[str, ...]:
    fitting = [form for form in VERBS[verb].forms if len(form) == len(texts)]
    if not fitting:
        wanted = " or ".join(" ".join(("", *form)).strip() or "nothing" for form in VERBS[verb].forms)
        raise InvalidRequest(f"{verb} takes {wanted}; {len(texts)} arguments arrived")
    # A node or device name never starts with a brace, so the JSON argument shows which order was used.
    at = [form for form in fitting if "options" in form and _is_json(texts[form.index("options")])]
    return (at or fitting)[0]


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{")


def verb_in(argv: Sequence[str]) -> str:
    """Return the verb for logs and records; any other text is never repeated, as it may be the options."""
    if not argv:
        return "(no verb)"
    return argv[0] if argv[0] in VERBS else "(unknown verb)"


def _text(verb: str, text: str, what: str = "an argument") -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Undecodable(f"{what} of {verb} is not UTF-8 text") from None
    if "\0" in text:
        raise Undecodable(f"{what} of {verb} contains a NUL character")
    return text


def _name(what: str, *, required: bool = True) -> Callable[[str, str], str]:
    """Return a reader of a name, which must not be JSON."""

    def read(verb: str, text: str) -> str:
        if (required and not text) or _is_json(text):
            raise InvalidRequest(f"{verb} names no {what}: the argument is {'JSON' if text else 'empty'}")
        return _text(verb, text)

    return read


def _target(verb: str, text: str) -> str:
    path = _text(verb, text)
    if not path.startswith("/") or {".", ".."} & set(path.split("/")) or not path.strip("/"):
        found = "JSON" if _is_json(path) else f"{len(path)} characters" if path else "nothing"
        raise InvalidRequest(f"{verb} needs an absolute path without '.' and '..'; found {found}")
    return "/" + "/".join(part for part in path.split("/") if part)


def _size(verb: str, text: str) -> int:
    number = _number(text, _SIZE_LIMIT)
    if number is None:
        found = "JSON" if _is_json(text) else f"{len(text)} characters"
        raise InvalidRequest(f"{verb}: a size must be a whole number of bytes; found {found}")
    return number


def _number(text: str, limit: int) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        return None
    number = int(text)
    return number if number <= limit else None


def _options(verb: str, text: str) -> VolumeOptions:
    pairs = _strings(verb, _text(verb, text))
    taken = {key.removeprefix(PREFIX): value for key, value in pairs.items() if key.startswith(PREFIX)}
    return VolumeOptions(
        fs_type=taken.get("fsType", ""),
        read_only=_read_only(verb, taken.get("readwrite", "")),
        volume_name=taken.get("pvOrVolumeName", ""),
        pod=Pod(
            name=taken.get("pod.name", ""),
            namespace=taken.get("pod.namespace", ""),
            uid=taken.get("pod.uid", ""),
            service_account=taken.get("serviceAccount.name", ""),
        ),
        fs_group=_fs_group(verb, pairs),
        secrets=_secrets(verb, pairs),
        own={key: value for key, value in pairs.items() if not key.startswith(PREFIX)},
    )


def _strings(verb: str, text: str) -> dict[str, str]:
    try:
        document: Any = VOLUME_OPTIONS.loads(text)
    except (ValueError, RecursionError) as error:
        place = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise Undecodable(f"the options of {verb} are not JSON{place}") from None
    if not isinstance(document, dict):
        raise Undecodable(f"the options of {verb} must be a JSON object; found {_json_type(document)}")
    for key, value in document.items():
        name = _text(verb, key, "an option's key").encode("unicode_escape").decode()[:120]
        if not isinstance(value, str):
            raise Undecodable(
                f"option '{name}' of {verb} must be a string; found {_json_type(value)}; put it in quotes"
            )
        _text(verb, value, f"option '{name}'")
    return document


def _json_type(value: Any) -> str:
    names = {dict: "an object", list: "a list", bool: "a boolean", type(None): "null", str: "a string"}
    return names.get(type(value), "a number")


def _read_only(verb: str, text: str) -> bool:
    if text not in {"", "rw", "ro"}:
        raise InvalidRequest(f"{verb}: kubernetes.io/readwrite must be 'rw' or 'ro'")
    return text == "ro"


def _fs_group(verb: str, pairs: Mapping[str, str]) -> int | None:
    for key in _FS_GROUPS:
        if not pairs.get(key):
            continue
        group = _number(pairs[key], _GROUP_LIMIT)
        if group is None:
            raise InvalidRequest(f"{verb}: {key} must be a group number between 0 and {_GROUP_LIMIT}")
        return group
    return None


def _secrets(verb: str, pairs: Mapping[str, str]) -> Secrets:
    values = {}
    for key, value in pairs.items():
        if not key.startswith(CREDENTIAL):
            continue
        try:
            values[key.removeprefix(CREDENTIAL)] = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise Undecodable(f"{key!r} of {verb} is not base64") from None
    return Secrets(values)


_PARTS: Final[Mapping[str, Callable[[str, str], Any]]] = MappingProxyType(
    {
        "options": _options,
        "node": _name("node"),
        "device": _name("device", required=False),
        "target": _target,
        "volume_name": _name("volume"),
        "new_size": _size,
        "old_size": _size,
    }
)


# --- driver status ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DriverStatus:
    """Kubelet's `DriverStatus` of a verb that succeeded; None omits a key.

    `device` is for attach and waitforattach, `attached` for isattached, `new_size` (bytes) for expandvolume,
    `capabilities` for init.
    """

    device: str | None = None
    attached: bool | None = None
    new_size: int | None = None
    capabilities: Mapping[str, bool] | None = None


def encode(status: DriverStatus) -> bytes:
    """Write a success as the one JSON object that kubelet reads."""
    document = {
        "status": "Success",
        "device": status.device,
        "attached": status.attached,
        "volumeNewSize": status.new_size,
        "capabilities": None if status.capabilities is None else dict(status.capabilities),
    }
    return _line({key: value for key, value in document.items() if value is not None})


def encode_error(error: PluginError) -> bytes:
    """Write an error, with its request id unless the status is that the driver lacks the verb."""
    text = error.message if isinstance(error, NotSupported) else with_request(error.message, error)
    return _line({"status": wire(error).flex, "message": text})


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"


def capabilities(claim: VolumeClaim, hooks: frozenset[str]) -> dict[str, bool]:
    """Return all keys of `init`: kubelet's defaults would enable attach, fsGroup, relabelling and resizing."""
    return {
        "attach": "volume_attach" in hooks,
        "fsGroup": claim.fs_group == "kubelet",
        "selinuxRelabel": claim.selinux_relabel,
        "supportsMetrics": claim.metrics,
        "requiresFSResize": "volume_expand" in hooks,
    }


def capabilities_file(claim: VolumeClaim, hooks: frozenset[str]) -> bytes:
    """Return the whole output of `init`, which the entrypoint prints from a file without the daemon."""
    return encode(DriverStatus(capabilities=capabilities(claim, hooks)))
