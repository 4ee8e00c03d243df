"""What is wrong with a configuration, in our own sentences.

Owns: one sentence per kind of pydantic error, its place in the file, what is allowed instead, and which known word was
probably meant.
Refuses: validation, and any knowledge of particular models.

A wrong value of a union is reported once, with all alternatives; pydantic's names for them are left out.
"""

import difflib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import core_schema

from nodeplug.config.schema import allowed_keys, without_tags
from nodeplug.fields import write_duration, write_quantity

Location = tuple[str | int, ...]
MOST: Final = 100
"""How many mistakes of a configuration are reported: suggesting a word for each of thousands takes too long."""
_LONGEST: Final = 60
_QUOTED: Final = re.compile(r"'((?:[^'\\]|\\.)*)'")
_SECRET: Final = re.compile(r"secret|passw|token|credential|private|api_?key", re.IGNORECASE)
_BOUNDS: Final = ("gt", "ge", "lt", "le")
_UNKNOWN: Final = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_PYDANTIC: Final = frozenset(get_args(core_schema.ErrorType))


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong with one key of the validated table; the text follows the key."""

    location: Location
    text: str


def dotted(location: Location) -> str:
    """Format a location: `resources[0].sharing`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f"{'.' if text else ''}{_key(part)}"
    return text


def told(location: Location, text: str) -> str:
    """Format a mistake in an unknown file."""
    return f"{dotted(location)}: {text}"


def did_you_mean(word: object, known: Collection[str]) -> str:
    """Return `; did you mean "..."?` if a known word is close, else an empty string."""
    near = difflib.get_close_matches(word, known, n=1) if isinstance(word, str) else []
    return f"; did you mean {json.dumps(near[0], ensure_ascii=False)}?" if near else ""


def unknown(kind: str, word: str, known: Sequence[str]) -> str:
    """Return the sentence for an unknown word."""
    near = did_you_mean(word, known)
    return f"unknown {kind}{near or ';'} allowed: {', '.join(known) or 'none'}"


def shown(value: object) -> str:
    """Format a value as in a file, shortened."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}" if value else "an empty list"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def first(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the first `MOST` sentences, and how many are left out."""
    more = len(texts) - MOST
    return (*texts[:MOST], *([f"and {more} more mistake{'' if more == 1 else 's'}"] if more > 0 else []))


def one_line(text: str) -> str:
    """Join the lines of a text, for a log and a list of mistakes with one line each."""
    return "; ".join(filter(None, map(str.strip, text.splitlines())))


def explain(
    error: ValidationError,
    model: type[BaseModel],
    document: object,
    order: Callable[[Location], Any] | None = None,
) -> list[Mistake]:
    """Return every mistake of a validation, one per key, sorted by the `order` of their locations.

    After the first `MOST`, the texts are short.
    """
    texts: dict[Location, list[str]] = {}
    found = [(_written(item, document, model), item) for item in error.errors(include_url=False)]
    if order is not None:
        found.sort(key=lambda one: order(one[0]))
    around = {at[:length] for at, _ in found for length in range(len(at))}
    for location, item in found:
        # pydantic counts only the valid elements of a list, so too few of them is not a separate mistake.
        if item["type"] == "too_short" and location in around:
            continue
        if location in texts or len(texts) < MOST:
            texts.setdefault(location, []).append(_sentence(item, location, model, document))
        else:
            texts[location] = ["unknown key" if item["type"] in _UNKNOWN else "is not accepted"]
    return [Mistake(location, _joined(said)) for location, said in texts.items()]


def _key(part: str) -> str:
    return part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else json.dumps(part, ensure_ascii=False)


def _written(item: Any, document: object, model: type[BaseModel]) -> Location:
    """Return the part of the location that is in the file, plus the key that is missing there."""
    path: list[str | int] = []
    place = document
    steps = without_tags(model, item["loc"])
    for number, part in enumerate(steps, start=1):
        if _holds(place, part):
            place = place[part]  # type: ignore[index] # _holds has looked
        elif not (item["type"] == "missing" and number == len(steps) and isinstance(place, Mapping)):
            continue
        path.append(part)
    if item["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        path.append(item["ctx"]["discriminator"].strip("'"))
    return tuple(path)


def _holds(place: object, part: str | int) -> bool:
    if isinstance(place, Mapping):
        return part in place
    return isinstance(place, list | tuple) and isinstance(part, int) and part < len(place)


def _sentence(item: Any, location: Location, model: type[BaseModel], document: object) -> str:
    kind, found, context = item["type"], item["input"], item.get("ctx", {})
    if kind in _UNKNOWN:
        return unknown("key", str(location[-1]), allowed_keys(model, item["loc"]))
    if kind == "missing" and isinstance(item["loc"][-1], int):
        return f"must have at least {item['loc'][-1] + 1} entries, not {len(found)}"
    if any(name in context for name in _BOUNDS):
        found = _at(document, location, found)
        context = {name: _as_written(bound, found) for name, bound in context.items()}
    write = _SENTENCES.get(kind, _foreign(item))
    text = write(found, context) if callable(write) else write.format(**context)
    if item["loc"] and item["loc"][-1] == "[key]":
        text = f"has a name that {text}"
    return text if _hidden(kind, found, text, location) else f"{text}, not {shown(found)}"


def _at(document: object, location: Location, found: object) -> object:
    """Return the value in the file; pydantic reports a size or duration as the converted number."""
    for part in location:
        if not _holds(document, part):
            return found
        document = document[part]  # type: ignore[index] # _holds has looked
    return document


def _as_written(bound: object, found: object) -> object:
    """Return a bound as a file would have it, next to a duration or a size."""
    if not isinstance(bound, int | float) or not isinstance(found, str):
        return bound
    if re.fullmatch(r"[0-9.]+(ms|s|m|h)", found):
        return write_duration(bound)
    return write_quantity(bound) if isinstance(bound, int) else bound


def _foreign(item: Any) -> str:
    """Return the text for an error type that is not in our table: the plugin's own, or a plain one."""
    if item["type"] in _PYDANTIC:
        return f"is not accepted: it breaks the rule {item['type'].replace('_', ' ')}"
    text = re.sub(
        r"^(Input|Value|value) (should|is)\b", lambda match: {"should": "must"}.get(match[2], match[2]), item["msg"]
    )
    return text.replace("{", "{{").replace("}", "}}")


def _hidden(kind: str, found: object, text: str, location: Location) -> bool:
    """Whether to hide a value: it is in the text already, says nothing, or may be a secret."""
    if kind in _WITHOUT_VALUE or any(isinstance(part, str) and _SECRET.search(part) for part in location):
        return True
    if isinstance(found, str):
        return repr(found) in text or shown(found) in text
    own = kind in {"value_error", "assertion_error"} or kind not in _PYDANTIC
    return own and (
        not isinstance(found, int | float) or re.search(rf"\b{re.escape(shown(found))}\b", text) is not None
    )


def _joined(texts: Sequence[str]) -> str:
    unique = list(dict.fromkeys(texts))
    if len(unique) > 1 and all(text.startswith("must be ") for text in unique):
        parts = [text.removeprefix("must be ").partition(", not ") for text in unique]
        end = next((f", not {found}" for _, _, found in parts if found), "")
        return f"must be {' or '.join(dict.fromkeys(part for part, _, _ in parts))}{end}"
    return "; or: ".join(unique)


def _one_of(found: object, context: Mapping[str, Any]) -> str:
    expected = str(context.get("expected") or context.get("expected_tags") or "")
    known = _QUOTED.findall(expected)
    for word in known:
        expected = expected.replace(f"'{word}'", json.dumps(word, ensure_ascii=False))
    tag = context.get("tag", found)
    text = f"must be {expected}"
    if isinstance(tag, str | int | float) and not isinstance(found, str | int | float):
        text += f", not {shown(tag)}"
    elif not isinstance(found, Mapping | list | tuple):
        text += f", not {shown(found)}"
    return text + did_you_mean(tag, known)


def _several(word: str) -> Callable[[object, Mapping[str, Any]], str]:
    def write(_: object, context: Mapping[str, Any]) -> str:
        few = "min_length" in context
        number = context["min_length" if few else "max_length"]
        unit = context.get("field_type", "")
        noun = word or ("entry" if number == 1 else "entries")
        noun = noun if not word or number == 1 else f"{noun}s"
        actual = context.get("actual_length")
        end = f", not {actual}" if actual is not None and unit else ""
        return f"must have at {'least' if few else 'most'} {number} {noun}{end}"

    return write


def _own(_: object, context: Mapping[str, Any]) -> str:
    return str(context.get("error", "")) or "is not accepted"


_WITHOUT_VALUE: Final = frozenset(
    ["missing", "literal_error", "enum", "union_tag_invalid", "union_tag_not_found", "too_short", "too_long"]
)
_URL: Final = "must be a URL, such as https://example.com/path"
_FORMS: Final[Mapping[str, str]] = {
    "bool": "must be true or false",
    "int": "must be a whole number",
    "float": "must be a number",
    "complex": "must be a number",
    "decimal": "must be a decimal number",
    "string": "must be text in quotes",
    "string_sub": "must be text in quotes",
    "bytes": "must be text in quotes",
    "path": "must be a path, as text in quotes",
    **dict.fromkeys(("list", "tuple", "set", "frozen_set", "iterable"), "must be a list"),
    **dict.fromkeys(("dict", "mapping", "model", "model_attributes", "dataclass"), "must be a table"),
    **dict.fromkeys(("datetime", "datetime_from_date"), "must be a date with a time, such as 2026-01-02T03:04:05Z"),
    **dict.fromkeys(("date", "date_from_datetime"), "must be a date, such as 2026-01-02"),
    "time": "must be a time of day, such as 03:04:05",
    "url": _URL,
    "uuid": "must be a UUID",
}
"""By what pydantic calls a type, in the errors `..._type` and `..._parsing`: the sentence after the key."""
_SENTENCES: Final[Mapping[str, str | Callable[[object, Mapping[str, Any]], str]]] = {
    **{f"{form}_{end}": text for form, text in _FORMS.items() for end in ("type", "parsing")},
    "missing": "is missing, and has no default",
    "value_error": _own,
    "assertion_error": _own,
    "literal_error": _one_of,
    "enum": _one_of,
    "union_tag_invalid": _one_of,
    "union_tag_not_found": "is missing; it tells which kind of table this is",
    "int_parsing_size": "must be a number of at most 64 bits",
    "int_from_float": _FORMS["int"],
    "finite_number": "must be a finite number",
    "multiple_of": "must be a multiple of {multiple_of}",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_unicode": "must be text in UTF-8",
    "string_too_short": _several("character"),
    "string_too_long": _several("character"),
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "bytes_too_short": _several("byte"),
    "bytes_too_long": _several("byte"),
    "path_not_file": "must be the path of a file that exists",
    "path_not_directory": "must be the path of a folder that exists",
    "path_exists": "must be a path where nothing exists yet",
    "too_short": _several(""),
    "too_long": _several(""),
    "none_required": "must be left out",
    "url_syntax_violation": _URL,
    "url_too_long": "must be a shorter URL, of at most {max_length} characters",
    "url_scheme": "must be a URL that begins with {expected_schemes}",
    **{
        f"ip_{name}_{part}": f"must be an {written} {part}"
        for name, written in (("v4", "IPv4"), ("v6", "IPv6"), ("any", "IPv4 or IPv6"))
        for part in ("address", "interface", "network")
    },
    "uuid_version": "must be a UUID of version {expected_version}",
}
"""By pydantic's type of an error: the sentence after the key."""
