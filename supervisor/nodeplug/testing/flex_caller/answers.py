"""Reading a FlexVolume driver's answer as kubelet does (pkg/volume/flexvolume, driver-call.go).

Owns: the one stream that must be one JSON object, keys in any case, types, the status and the exit status.
Refuses: executing anything.
"""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

CAPABILITIES: Final[Mapping[str, bool]] = MappingProxyType(
    {
        "attach": True,
        "selinuxRelabel": True,
        "supportsMetrics": False,
        "fsGroup": True,
        "requiresFSResize": True,
    }
)
"""What kubelet takes for granted where `init` says nothing."""
_KEYS: Final[Mapping[str, type]] = MappingProxyType(
    {
        "status": str,
        "message": str,
        "device": str,
        "volumeName": str,
        "attached": bool,
        "capabilities": dict,
        "volumeNewSize": int,
    }
)


class FlexFailure(Exception):
    """A call failed, as kubelet sees it; the text is what kubelet would log, argv included where it does that."""


class FlexNotSupported(Exception):
    """The driver does not support this verb; kubelet uses its own default until the driver is probed again."""


def parse(verb: str, output: bytes) -> dict[str, Any]:
    """Read stdout and stderr together.

    Returns:
        The answer; known keys are spelled as the documentation does, whatever case the driver used.

    Raises:
        FlexFailure: it is not one JSON object with the right types. One byte on stderr is enough.
    """
    try:
        document = json.loads(output)
        if not isinstance(document, dict):
            raise ValueError(f"cannot unmarshal {type(document).__name__}")  # noqa: TRY004 - as one failure
        return {_spelled(key, _KEYS): _typed(key, value) for key, value in document.items()}
    except ValueError as error:
        raise FlexFailure(
            f"failed to unmarshal output for command: {verb}, output: {output!r}, error: {error}"
        ) from None


def _spelled(key: str, known: Mapping[str, Any]) -> str:
    return next((name for name in known if name.lower() == key.lower()), key)


def _typed(key: str, value: Any) -> Any:
    """Go refuses a known key of another type; null counts as absent."""
    wanted = _KEYS.get(_spelled(key, _KEYS))
    if wanted is None or value is None or type(value) is wanted:
        return value
    raise ValueError(f"cannot unmarshal {type(value).__name__} into field {key} of type {wanted.__name__}")


def read_capabilities(answer: Mapping[str, Any]) -> Mapping[str, bool]:
    """Read what `init` says, with kubelet's defaults."""
    told = {_spelled(key, CAPABILITIES): value for key, value in (answer.get("capabilities") or {}).items()}
    return {name: bool(told.get(name, default)) for name, default in CAPABILITIES.items()}


def judge(verb: str, answer: dict[str, Any], status: int, executable: str, argv: Sequence[str]) -> dict[str, Any]:
    """Return the answer of a call that succeeded.

    Raises:
        FlexFailure: any other. After an exit status that is not 0 the text has the whole argv, secrets included.
        FlexNotSupported: the driver does not support this.
    """
    said = answer.get("status") or ""
    if said == "Not supported":
        raise FlexNotSupported(f"{verb}: {answer.get('message') or ''}")
    if said == "Success" and status == 0:
        return answer
    if said == "Success":
        raise FlexFailure(f"{verb}: driver bug: exit status {status} but no error in the response")
    told = f"{verb} command failed, status: {said}, reason: {answer.get('message') or ''}"
    if status != 0:
        told = f"driver call failed: executable: {executable}, args: {list(argv)}; {told}"
    raise FlexFailure(told)
