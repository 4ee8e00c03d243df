"""Writing TOML.

Owns: leaving out what TOML cannot say: None.
Refuses: the writing itself, which a library does, and comments.
"""

from collections.abc import Mapping
from typing import Any

import tomli_w


def toml(document: Mapping[str, Any]) -> str:
    """Write a document; None is left out."""
    return tomli_w.dumps(_without_none(document))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value if inner is not None] if isinstance(value, list | tuple) else value
