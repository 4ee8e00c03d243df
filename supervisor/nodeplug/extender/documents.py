"""JSON of kube-scheduler, read so that whole nodes can be given back byte for byte.

Owns: the members of an object by folded name, since Go reads field names in any case; and the items of a list of nodes,
each as an object and as it was written.
Refuses: what a member means (`codec`). A list of 500 nodes has 15 MB: the standard library reads it item by item, which
lets other threads have the interpreter in between, and what is not read again need not be written again.
"""

import json
import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

from nodeplug.contract.errors import Undecodable
from nodeplug.contract.inputs import EXTENDER_BODY


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_no_number)
_SPACE: Final = re.compile(r"[ \t\n\r]*")
Item = tuple[Any, str]
"""A value, and how it was written."""
_Reader = Callable[[str, str, int], tuple[Any, int]]
"""Reads a member's value: its folded name, the text, and where the value begins; returns where it ended, too."""


def read(body: bytes, listed: str = "") -> dict[str, Any]:
    """Read an object; return its members by name in lower case. Of two that differ in case the last counts, as in Go.

    Args:
        body: UTF-8.
        listed: the member, in lower case, that is a v1 list: its value is a list of `Item`, if it is an object.

    Raises:
        Undecodable: it is no JSON object.
    """
    try:
        EXTENDER_BODY.check_values(body)
        text = body.decode()

        def member(name: str, text: str, at: int) -> tuple[Any, int]:
            if name == listed and text[at : at + 1] == "{":
                return _listed(text, at)
            if name == listed and text[at : at + 1] == "[":
                raise ValueError(f"{name} is an array; a list of the API server is an object with items")
            return _DECODER.raw_decode(text, at)

        document, end = _object(text, _skip(text, 0), member)
        if _skip(text, end) != len(text):
            raise ValueError(f"something follows the object at character {end}")
    except RecursionError:
        raise Undecodable("the body is JSON that is nested too deeply") from None
    except ValueError as error:
        raise Undecodable(f"the body is no JSON object: {error}") from None
    return document


def _listed(text: str, at: int) -> tuple[list[Item], int]:
    """Read a v1 list: its metadata is of no use here."""

    def member(name: str, text: str, at: int) -> tuple[Any, int]:
        if name == "items" and text[at : at + 1] == "[":
            return _array(text, at)
        return _DECODER.raw_decode(text, at)

    document, end = _object(text, at, member)
    items = document.get("items") or []
    if not isinstance(items, list):
        raise ValueError(f"the items of a list are a {type(items).__name__}")  # noqa: TRY004 - of the caller's bytes
    return items, end


def _object(text: str, at: int, read: _Reader) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    at = _after(text, at, "{")
    if text[at : at + 1] == "}":
        return members, at + 1
    while True:
        name, at = _DECODER.raw_decode(text, at)
        if not isinstance(name, str):
            raise ValueError(f"a name is due before character {at}")  # noqa: TRY004 - of the caller's bytes
        folded = name.lower()
        members[folded], at = read(folded, text, _after(text, at, ":"))
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            return members, at + 1
        at = _after(text, at, ",")


def _array(text: str, at: int) -> tuple[list[Item], int]:
    items: list[Item] = []
    at = _after(text, at, "[")
    if text[at : at + 1] == "]":
        return items, at + 1
    while True:
        value, end = _DECODER.raw_decode(text, at)
        items.append((value, text[at:end]))
        at = _skip(text, end)
        if text[at : at + 1] == "]":
            return items, at + 1
        at = _after(text, at, ",")


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space is not None else at


def _after(text: str, at: int, mark: str) -> int:
    """Return where the next thing begins after a mark, which is due."""
    at = _skip(text, at)
    if text[at : at + 1] != mark:
        raise ValueError(f"{mark!r} is due at character {at}")
    return _skip(text, at + 1)
