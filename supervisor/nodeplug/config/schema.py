"""Questions about configuration models that pydantic's errors leave open.

Owns: which keys are allowed at a place of a model, and which parts of an error's place are tags of unions and no
keys, both found in its JSON schema.
Refuses: validation, and any knowledge of particular models.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema


def allowed_keys(model: type[BaseModel], location: Sequence[str | int]) -> tuple[str, ...]:
    """Return the keys beside a wrong one: the last part of the location of a pydantic error in the whole model.

    Returns:
        The allowed names; empty when the place is no table of a model.
    """
    _, places, definitions = _walk(model, location[:-1])
    tables = [table for place in places for table in _resolve(place, definitions)]
    return tuple(dict.fromkeys(key for table in tables for key in table.get("properties", {})))


def without_tags(model: type[BaseModel], location: Sequence[str | int]) -> tuple[str | int, ...]:
    """Return the place of an error without the tags of unions: a key beside one may be called the same."""
    return _walk(model, location)[0]


class _Lenient(GenerateJsonSchema):
    """A plugin's class may have types that JSON schema cannot say; whatever else it has is told all the same."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 (as pydantic has it)

    def handle_invalid_for_json_schema(self, *_: object) -> dict[str, Any]:
        return {}


@lru_cache(maxsize=4)
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(schema_generator=_Lenient)


_Places = list[dict[str, Any]]


def _walk(
    model: type[BaseModel], location: Sequence[str | int]
) -> tuple[tuple[str | int, ...], _Places, Mapping[str, Any]]:
    """Go down from the top; return the way without tags, the schemas at its end, and the definitions."""
    root = _schema(model)
    definitions: Mapping[str, Any] = root.get("$defs", {})
    places: _Places = [root]
    way: list[str | int] = []
    for part in location:
        tagged = [inner for place in places for inner in _tagged(place, part, definitions)]
        if not tagged:
            way.append(part)
        places = tagged or [inner for place in places for inner in _inside(_resolve(place, definitions), part)]
    return tuple(way), places, definitions


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
