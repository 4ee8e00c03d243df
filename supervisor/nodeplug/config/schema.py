"""Questions about configuration models that pydantic's errors leave open.

Owns: which keys are allowed at a place of a model, and which parts of an error's location are union tags, both from the
model's JSON schema.
Refuses: validation, and any knowledge of particular models.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema


def allowed_keys(model: type[BaseModel], location: Sequence[str | int]) -> tuple[str, ...]:
    """Return the keys that are allowed in the place of a wrong one, the last part of a location."""
    _, places, definitions = _walk(model, location[:-1])
    tables = [table for place in places for table in _resolve(place, definitions)]
    return tuple(dict.fromkeys(key for table in tables for key in table.get("properties", {})))


def without_tags(model: type[BaseModel], location: Sequence[str | int]) -> tuple[str | int, ...]:
    """Return a location without union tags: a key beside a tag may have the same name."""
    return _walk(model, location)[0]


class _Lenient(GenerateJsonSchema):
    """Skips types that have no JSON schema, which a plugin's class may use."""

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
    """Descend from the top; return the location without tags, the schemas there, and the definitions."""
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
    """Return the alternative that a tag names; one of its keys may have the same name."""
    reference = place.get("discriminator", {}).get("mapping", {}).get(part)
    return [definitions[reference.rpartition("/")[2]]] if reference else []


def _resolve(place: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[Mapping[str, Any]]:
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
    # A part that names an alternative of a union (its tag or its class) does not descend.
    return found or [dict(place) for place in places if isinstance(part, str) and "properties" not in place]
