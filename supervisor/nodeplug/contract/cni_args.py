"""CNI_ARGS, as the Go library reads it.

Owns: `K=V;K=V`, `IgnoreUnknown`, and the library's sentences (libcni, pkg/types/args.go).
Refuses: to know any plugin's keys, and to read before a plugin asks: a plugin without arguments never fails by them.
"""

import json
from collections.abc import Collection, Mapping
from typing import Final

from nodeplug.contract.errors import InvalidEnvironment

_IGNORE: Final = "IgnoreUnknown"
_BOOLEANS: Final[Mapping[str, bool]] = {"1": True, "true": True, "0": False, "false": False}
_FORM: Final = "CNI_ARGS has the form K=V;K=V"


def pairs(text: str) -> dict[str, str]:
    """Return the pairs that are well-formed; of two with one key the later."""
    parts = (pair.split("=") for pair in text.split(";"))
    return {part[0]: part[1] for part in parts if len(part) == 2}


def read(text: str, known: Collection[str]) -> dict[str, str]:
    """Return the arguments that a plugin knows.

    Raises:
        InvalidEnvironment: a pair is malformed, also an empty one after a trailing semicolon; or a key is not known and
            `IgnoreUnknown` does not say that this is right.
    """
    found, unknown, ignore = {}, [], False
    for pair in text.split(";") if text else ():
        parts = pair.split("=")
        if len(parts) != 2:
            raise InvalidEnvironment(f"ARGS: invalid pair {_quoted(pair)}", details=_FORM)
        key, value = parts
        if key == _IGNORE:
            ignore = _boolean(pair, value)
        elif key in known:
            found[key] = value
        else:
            unknown.append(_quoted(pair))
    if unknown and not ignore:
        names = ", ".join(known)
        raise InvalidEnvironment(
            f"ARGS: unknown args [{' '.join(unknown)}]", details=f"known: {names}; IgnoreUnknown=1 allows others"
        )
    return found


def _boolean(pair: str, value: str) -> bool:
    said = value.lower()
    if said not in _BOOLEANS:
        reason = f"boolean unmarshal error: invalid input {said}"
        raise InvalidEnvironment(f"ARGS: error parsing value of pair {_quoted(pair)}: {reason}", details="in CNI_ARGS")
    return _BOOLEANS[said]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
