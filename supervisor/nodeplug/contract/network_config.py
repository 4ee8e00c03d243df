"""A network's configuration as a model of the plugin that reads it.

Owns: letter case, the keys that the CNI specification gives to runtimes, and one sentence per mistake.
Refuses: to know any plugin's keys.

Go matches keys without regard to case and the callers use that: containerd sends `HostPort` where podman sends
`hostPort`. A model names its keys once, in whatever case, as aliases or as names. Null counts as absent, as in Go,
unless a model requires the key and takes None.
"""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from nodeplug.contract.errors import InvalidRequest, clip

_RESERVED: Final = frozenset(
    {
        *("cniversion", "name", "type", "prevresult", "runtimeconfig", "args", "capabilities"),
        *("cni.dev/valid-attachments", "cni.dev/attachments"),
    }
)
"""Keys that runtimes write (specification 1.1.0, section 1): allowed even if a model does not name them."""
_SHOWN: Final = 80
_KEPT: Final = 128
"""Configurations whose models are kept: a node has few networks, and each of their requests carries one whole."""
_M = TypeVar("_M", bound=BaseModel)


def parse(config: Mapping[str, Any], model: type[_M]) -> _M:
    """Validate a configuration.

    Args:
        config: a plugin's object of a network configuration.
        model: with the keys that the plugin reads; `extra="forbid"` refuses others but those of the specification. A
            frozen model is shared by all requests with the same keys.

    Raises:
        InvalidRequest: every mistake with its key, what is expected and what was found.
    """
    known = _keys((model,))
    read = {key: value for key, value in config.items() if key.lower() in known or key.lower() not in _RESERVED}
    if model.model_config.get("frozen"):
        try:
            text = json.dumps(read)
        except (TypeError, ValueError):  # a test's own values
            return _validated(read, model)
        shared: _M = _shared(text, model)
        return shared
    return _validated(read, model)


@lru_cache(maxsize=_KEPT)
def _shared(text: str, model: type[_M]) -> Any:
    return _validated(json.loads(text), model)


def _validated(read: Mapping[str, Any], model: type[_M]) -> _M:
    try:
        return model.model_validate(_spelt(read, (model,)))
    except ValidationError as error:
        raise InvalidRequest("; ".join(map(_sentence, error.errors(include_url=False)))) from None


@lru_cache(maxsize=256)
def _keys(models: tuple[type[BaseModel], ...]) -> Mapping[str, tuple[str, tuple[type[BaseModel], ...], bool, bool]]:
    """Return the keys of models in lower case: the name for validation, the models below, two traits.

    These are whether it is a table, whose keys are names and keep their case, and whether null is a value that a model
    asks for.
    """
    keys = {}
    for model in models:
        for name, field in model.model_fields.items():
            alias = field.validation_alias if isinstance(field.validation_alias, str) else name
            required = field.is_required() and type(None) in get_args(field.annotation)
            keys[alias.lower()] = (alias, tuple(_models(field.annotation)), _is_table(field.annotation), required)
    return keys


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for argument in get_args(kind):
        yield from _models(argument)


def _is_table(kind: Any) -> bool:
    origin = get_origin(kind)
    return (isinstance(origin, type) and issubclass(origin, Mapping)) or any(map(_is_table, get_args(kind)))


def _spelt(value: Any, models: tuple[type[BaseModel], ...], *, table: bool = False) -> Any:
    """Copy decoded JSON with the keys of the models in their own spelling; of two spellings of one the later wins."""
    if not models:
        return value
    if isinstance(value, list):
        return [_spelt(item, models, table=table) for item in value]
    if not isinstance(value, Mapping):
        return value
    if table:
        return {key: _spelt(item, models) for key, item in value.items()}
    known = _keys(models)
    copy: dict[str, Any] = {}
    for key, item in value.items():
        if (found := known.get(key.lower())) is None:
            copy[key] = item
        elif item is not None or found[3]:
            name, below, is_table, _ = found
            copy[name] = _spelt(item, below, table=is_table)
    return copy


def _sentence(mistake: Any) -> str:
    place = ""
    for part in mistake["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else str(part)
    said = mistake["msg"].removeprefix("Value error, ")
    found = "" if mistake["type"] == "missing" else f", found {clip(repr(mistake['input']), _SHOWN)}"
    return f"key {place!r}: {said[:1].lower()}{said[1:]}{found}"
