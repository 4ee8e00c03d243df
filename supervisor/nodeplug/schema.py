"""Questions about configuration models that pydantic's errors leave open.

Owns: which keys are allowed at a place of a model, found in its JSON schema.
Refuses: validation, and any knowledge of particular models.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel


def allowed_keys(model: type[BaseModel], location: Sequence[str | int]) -> tuple[str, ...]:
    """Return the keys that a table of the configuration may have.

    Args:
        model: the whole model.
        location: of the wrong key, as in a pydantic error: its last part is the key itself.

    Returns:
        The allowed names; empty when the place is no table of a model.
    """
    root = model.model_json_schema()
    definitions: Mapping[str, Any] = root.get("$defs", {})
    places = [root]
    for part in location[:-1]:
        tagged = [inner for place in places for inner in _tagged(place, part, definitions)]
        places = tagged or [inner for place in places for inner in _inside(_resolve(place, definitions), part)]
    tables = [table for place in places for table in _resolve(place, definitions)]
    return tuple(dict.fromkeys(key for table in tables for key in table.get("properties", {})))


def _tagged(place: Mapping[str, Any], part: str | int, definitions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the alternative of a union that a tag names; a key of that alternative may be called the same."""
    reference = place.get("discriminator", {}).get("mapping", {}).get(part)
    return [definitions[reference.rpartition("/")[2]]] if reference else []


def _resolve(place: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Follow references and alternatives to plain schemas."""
    if "$ref" in place:
        return _resolve(definitions[place["$ref"].rpartition("/")[2]], definitions)
    alternatives = place.get("anyOf", place.get("oneOf"))
    return [inner for one in alternatives for inner in _resolve(one, definitions)] if alternatives else [place]


def _inside(places: Sequence[Mapping[str, Any]], part: str | int) -> list[dict[str, Any]]:
    found = []
    for place in places:
        inner = place.get("items") if isinstance(part, int) else place.get("properties", {}).get(part)
        if inner is None and not isinstance(part, int):
            inner = place.get("additionalProperties")
        if isinstance(inner, dict):
            found.append(inner)
    # A part that names an alternative of a union (its tag or its class) is no step down.
    return found or [dict(place) for place in places if isinstance(part, str) and "properties" not in place]
