# ruff: noqa: INP001 - beside the script that uses it, not a package
"""The values of the contract as pages show them: one paragraph and one table of fields per class.

Owns: the way from a dataclass with its docstring to Markdown.
Refuses: words of its own: what a field means is said where it is declared.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from types import ModuleType
from typing import Any, Final

from nodeplug.contract.values import claims, cluster, cni, devices, extenders, provisioning, reports, requests, volumes

STYLES: Final[Mapping[str, ModuleType]] = {
    "requests": requests,
    "claims": claims,
    "reports": reports,
    "cluster": cluster,
    "cni": cni,
    "devices": devices,
    "volumes": volumes,
    "provisioning": provisioning,
    "extenders": extenders,
}
_ATTRIBUTE: Final = re.compile(r"^    (\w+): (.*(?:\n        .*)*)", re.MULTILINE)


def reference(style: str) -> str:
    """Return the values of one style, in the order of their module."""
    module = STYLES[style]
    classes = [one for one in vars(module).values() if is_dataclass(one) and one.__module__ == module.__name__]
    return "\n\n".join("\n".join(_described(cls)) for cls in classes if isinstance(cls, type))


def _described(cls: type[Any]) -> Iterator[str]:
    text, attributes = _docstring(cls)
    base = next((one for one in cls.__mro__[1:-1] if is_dataclass(one)), None)
    yield f"#### `{cls.__name__}`"
    yield ""
    yield text + (f" Has all fields of `{base.__name__}`." if base is not None else "")
    own = [field for field in fields(cls) if field.name in vars(cls).get("__annotations__", {})]
    if own:
        yield ""
        yield "| field | type | default | meaning |"
        yield "|---|---|---|---|"
    for field in own:
        yield f"| `{field.name}` | `{_type(field.type)}` | {_default(field)} | {attributes.get(field.name, '')} |"


def _docstring(cls: type[Any]) -> tuple[str, Mapping[str, str]]:
    text, _, rest = (inspect.getdoc(cls) or "").partition("\nAttributes:\n")
    found = {name: " ".join(said.split()).replace("|", "\\|") for name, said in _ATTRIBUTE.findall(rest)}
    return " ".join(text.split()), {name: said[:1].upper() + said[1:] for name, said in found.items()}


def _type(annotation: Any) -> str:
    shown = inspect.formatannotation(annotation)
    return re.sub(r"\b[a-z_]\w*\.(?=\w)", "", shown).replace("|", "\\|")


def _default(field: Field[Any]) -> str:
    if field.default_factory is not MISSING:
        return "empty"
    if field.default is MISSING:
        return "required"
    return "`" + re.sub(r"\(.*\)", "()", repr(field.default)).replace("|", "\\|") + "`"
