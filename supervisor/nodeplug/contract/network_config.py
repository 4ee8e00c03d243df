"""A network's configuration as the model of whoever reads it.

Owns: letter case, the keys that the CNI specification gives to runtimes, and one sentence per mistake.
Refuses: to know any plugin's keys.

Go matches keys without regard to case and the callers use that: containerd sends `HostPort` where podman sends
`hostPort`. A model names its keys once, in whatever case, as aliases or as names.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from nodeplug.contract.errors import InvalidRequest, clip

_RESERVED: Final = frozenset(
    {
        *("cniversion", "name", "type", "prevresult", "runtimeconfig", "args", "capabilities"),
        *("cni.dev/valid-attachments", "cni.dev/attachments"),
    }
)
"""Keys that runtimes write (specification 1.1.0, section 1): no mistake of a user where a model does not name them."""
_SHOWN: Final = 80
_M = TypeVar("_M", bound=BaseModel)


def parse(config: Mapping[str, Any], model: type[_M]) -> _M:
    """Validate a configuration.

    Args:
        config: a plugin's object of a network configuration.
        model: with the keys that the plugin reads; `extra="forbid"` refuses others but those of the specification.

    Raises:
        InvalidRequest: every mistake with its key, what is due and what was found.
    """
    known = {name.lower() for name in _names(model)}
    read = {key: value for key, value in config.items() if key.lower() in known or key.lower() not in _RESERVED}
    try:
        return model.model_validate(_spelt(read, [model]))
    except ValidationError as error:
        raise InvalidRequest("; ".join(map(_sentence, error.errors(include_url=False)))) from None


def _names(model: type[BaseModel]) -> Mapping[str, Any]:
    """Return the keys of a model, as validation expects them, with their types."""
    fields = model.model_fields.items()
    return {
        alias if isinstance(alias := field.validation_alias, str) else name: field.annotation for name, field in fields
    }


def _spelt(value: Any, models: list[type[BaseModel]]) -> Any:
    """Copy decoded JSON with the keys of the models in their own spelling; of two spellings of one the later wins."""
    if isinstance(value, list):
        return [_spelt(item, models) for item in value]
    if not isinstance(value, Mapping) or not models:
        return value
    known = {name.lower(): (name, kind) for model in models for name, kind in _names(model).items()}
    copy: dict[str, Any] = {}
    for key, item in value.items():
        name, kind = known.get(key.lower(), (key, None))
        copy[name] = _tabled(item, kind)
    return copy


def _tabled(value: Any, kind: Any) -> Any:
    models = list(_models(kind))
    if isinstance(value, Mapping) and any(argument is str for argument in get_args(kind)[:1]):
        return {key: _spelt(item, models) for key, item in value.items()}  # a table of tables: its keys are names
    return _spelt(value, models)


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for argument in get_args(kind):
        yield from _models(argument)


def _sentence(mistake: Any) -> str:
    place = ""
    for part in mistake["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else str(part)
    said = mistake["msg"][:1].lower() + mistake["msg"][1:]
    found = "" if mistake["type"] == "missing" else f", found {clip(repr(mistake['input']), _SHOWN)}"
    return f"key {place!r}: {said}{found}"
