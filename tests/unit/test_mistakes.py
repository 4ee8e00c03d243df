"""Every kind of mistake that a configuration model can find, in a sentence of our own."""

import datetime as dt
import re
from collections.abc import Iterator
from decimal import Decimal
from enum import Enum
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import (
    AnyUrl,
    BaseModel,
    ConfigDict,
    DirectoryPath,
    Field,
    FilePath,
    HttpUrl,
    ValidationError,
    create_model,
    field_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from nodeplug.config.mistakes import explain
from nodeplug.fields import CniExecutable, ExtendedResource, FlexDriver, Quantity, Seconds
from nodeplug.loading.discovery import find, installed


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Cat(BaseModel, extra="forbid"):
    kind: Literal["cat"]
    lives: int = Field(9, ge=1)


class Dog(BaseModel, extra="forbid"):
    kind: Literal["dog"]
    dog: str = "rex"


class Bird(BaseModel, extra="forbid"):
    kind: Literal["bird"]
    bird: bool
    wings: int


Pet = Annotated[Cat | Dog | Bird, Field(discriminator="kind")]


def told(kind: Any, value: object) -> list[str]:
    """Return the sentences for one value of one type, each with its key."""
    model = create_model("Model", __config__=ConfigDict(extra="forbid"), key=(kind, ...))
    document = {"key": value}
    try:
        model.model_validate(document)
    except ValidationError as error:
        return [
            f"{'.'.join(str(part) for part in one.location)}: {one.text}" for one in explain(error, model, document)
        ]
    return []


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [
        (bool, "perhaps", 'key: must be true or false, not "perhaps"'),
        (bool, [1], "key: must be true or false, not a list of 1"),
        (int, "x", 'key: must be a whole number, not "x"'),
        (int, 1.5, "key: must be a whole number, not 1.5"),
        (int, {}, "key: must be a whole number, not a table"),
        (int, "9" * 5000, f'key: must be a number of at most 64 bits, not "{"9" * 59}…'),
        (float, "x", 'key: must be a number, not "x"'),
        (Annotated[float, Field(allow_inf_nan=False)], float("nan"), "key: must be a finite number, not nan"),
        (Decimal, "x", 'key: must be a decimal number, not "x"'),
        (Annotated[int, Field(gt=1)], 1, "key: must be more than 1, not 1"),
        (Annotated[int, Field(ge=2)], 1, "key: must be at least 2, not 1"),
        (Annotated[int, Field(lt=1)], 1, "key: must be less than 1, not 1"),
        (Annotated[int, Field(le=0)], 1, "key: must be at most 0, not 1"),
        (Annotated[int, Field(multiple_of=2)], 1, "key: must be a multiple of 2, not 1"),
        (str, 5, "key: must be text in quotes, not 5"),
        (Annotated[str, Field(min_length=1)], "", 'key: must have at least 1 character, not ""'),
        (Annotated[str, Field(min_length=2)], "", 'key: must have at least 2 characters, not ""'),
        (Annotated[str, Field(max_length=2)], "abc", 'key: must have at most 2 characters, not "abc"'),
        (Annotated[str, Field(pattern="^a$")], "b", 'key: must match the pattern ^a$, not "b"'),
        (Path, 5, "key: must be a path, as text in quotes, not 5"),
        (FilePath, "/no", 'key: must be the path of a file that exists, not "/no"'),
        (DirectoryPath, "/no", 'key: must be the path of a folder that exists, not "/no"'),
        (list[int], 5, "key: must be a list, not 5"),
        (tuple[int, ...], 5, "key: must be a list, not 5"),
        (set[int], 5, "key: must be a list, not 5"),
        (Annotated[tuple[int, ...], Field(min_length=1)], [], "key: must have at least 1 entry, not 0"),
        (Annotated[list[int], Field(max_length=1)], [1, 2], "key: must have at most 1 entry, not 2"),
        (tuple[int, int], [1], "key: must have at least 2 entries, not 1"),
        (dict[str, int], 5, "key: must be a table, not 5"),
        (Cat, 5, "key: must be a table, not 5"),
        (Literal["open", "exists"], "opened", 'key: must be "open" or "exists", not "opened"; did you mean "open"?'),
        (Literal[1], 2, "key: must be 1, not 2"),
        (Colour, "gren", 'key: must be "red" or "green", not "gren"; did you mean "green"?'),
        (Pet, {"kind": "dgo"}, 'key.kind: must be "cat", "dog", "bird", not "dgo"; did you mean "dog"?'),
        (Pet, {}, "key.kind: is missing; it tells which kind of table this is"),
        (Pet, {"kind": "cat", "lives": 0}, "key.lives: must be at least 1, not 0"),
        (Pet, {"kind": "dog", "dog": 5}, "key.dog: must be text in quotes, not 5"),
        (Pet, {"kind": "dog", "dgo": 5}, 'key.dgo: unknown key; did you mean "dog"? allowed: kind, dog'),
        (bool | Literal["auto"], 7, 'key: must be true or false or "auto", not 7'),
        (int | None, "x", 'key: must be a whole number, not "x"'),
        (Seconds, "ten", "key: 'ten' is not a duration; write a number with ms, s, m or h, such as '10s'"),
        (Seconds, 0, "key: must be more than 0, not 0"),
        (Quantity, "1 Gig", "key: '1 Gig' is not a size; write bytes, or a number with Ki, Mi, Gi, Ti, k, M, G or T"),
        (None, 5, "key: must be left out, not 5"),
        (dt.datetime, "x", "key: must be a date with a time, such as 2026-01-02T03:04:05Z"),
        (dt.date, "x", "key: must be a date, such as 2026-01-02"),
        (dt.time, "x", "key: must be a time of day, such as 03:04:05"),
        (AnyUrl, "x", "key: must be a URL, such as https://example.com/path"),
        (HttpUrl, "ftp://x/", "key: must be a URL that begins with 'http' or 'https'"),
        (UUID, "x", "key: must be a UUID"),
        (Annotated[Quantity, Field(ge=1 << 20)], "5Ki", 'key: must be at least 1Mi, not "5Ki"'),
        (Seconds, "48h", 'key: must be at most 24h, not "48h"'),
        (ExtendedResource, "fuse", "key: 'fuse' is not an extended resource: it needs the form vendor.domain/name"),
        (FlexDriver, "a b", "key: 'a b' is not a FlexVolume driver: it needs the form vendor/driver"),
        (CniExecutable, "a/b", "key: 'a/b' cannot be the name of an executable on CNI_PATH"),
        (IPv4Address, "x", 'key: must be an IPv4 address, not "x"'),
        (dict[Literal["a"], int], {"b": 1}, 'key.b: has a name that must be "a", not "b"'),
    ],
)  # fmt: skip
def test_a_mistake_is_a_sentence(kind: Any, value: object, sentence: str) -> None:
    (line,) = told(kind, value)
    assert line.startswith(sentence)


def test_an_unknown_key_of_a_kind_whose_name_is_also_a_key_is_told_the_allowed_ones() -> None:
    (line,) = told(Pet, {"kind": "dog", "dgo": 5})
    assert line.endswith("allowed: kind, dog")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"kind": "dog", "dog": "rex", "dgo": 5}, "key.dgo: unknown key"),
        ({"kind": "dog", "dog": 5}, "key.dog: must be text in quotes, not 5"),
        ({"kind": "bird", "bird": True}, "key.wings: is missing"),
    ],
)  # fmt: skip
def test_a_key_that_is_called_as_its_kind_takes_no_mistake_of_others(value: object, sentence: str) -> None:
    (line,) = told(Pet, value)
    assert line.startswith(sentence)


def test_a_class_with_a_type_that_json_schema_cannot_say_has_its_mistakes_told() -> None:
    class Opaque:
        pass

    class Model(BaseModel, extra="forbid", arbitrary_types_allowed=True):
        opaque: Opaque = Opaque()
        num: int = 0

    with pytest.raises(ValidationError) as caught:
        Model.model_validate({"nums": 5, "num": "x"})
    texts = [one.text for one in explain(caught.value, Model, {"nums": 5, "num": "x"})]
    assert texts == [
        'must be a whole number, not "x"',
        'unknown key; did you mean "num"? allowed: opaque, num',
    ]


def test_a_missing_key_is_told() -> None:
    class Model(BaseModel):
        wanted: int

    with pytest.raises(ValidationError) as caught:
        Model.model_validate({})
    (mistake,) = explain(caught.value, Model, {})
    assert (mistake.location, mistake.text) == (("wanted",), "is missing, and has no default")


def test_a_list_with_a_wrong_entry_is_not_called_too_short() -> None:
    assert told(Annotated[tuple[int, ...], Field(min_length=1)], ["x"]) == ['key.0: must be a whole number, not "x"']


def test_a_value_whose_key_is_named_like_a_secret_is_not_shown() -> None:
    class Model(BaseModel):
        password: int

    document = {"password": "hunter2"}
    with pytest.raises(ValidationError) as caught:
        Model.model_validate(document)
    assert explain(caught.value, Model, document)[0].text == "must be a whole number"


def test_a_plugins_own_kind_of_error_keeps_its_words() -> None:
    class Model(BaseModel):
        key: int

        @field_validator("key")
        @classmethod
        def _even(cls, value: int) -> int:
            raise PydanticCustomError("odd_{}", "{value} is odd, take {its} double", {"value": value, "its": "its"})

    with pytest.raises(ValidationError) as caught:
        Model.model_validate({"key": 3})
    assert explain(caught.value, Model, {"key": 3})[0].text == "3 is odd, take its double"


def test_a_kind_without_a_sentence_still_reads_as_one() -> None:
    error = ValidationError.from_exception_data("x", [InitErrorDetails(type="frozen_instance", loc=("key",), input=5)])
    assert explain(error, Cat, {"key": 5})[0].text == "is not accepted: it breaks the rule frozen instance, not 5"


# --- what the bundled plugins' models can find -------------------------------------------------------------------


GARBAGE: tuple[object, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    "",
    "x",
    "9" * 60,
    [],
    [0],
    ["x"],
    [{}],
    {},
    {"x": 1},
    float("nan"),
)
PYDANTIC = re.compile(r"Input should|Field required|Extra inputs|validation|Value error|valid \w+, unable|\bTuple\b")


def spoiled(value: Any) -> Iterator[Any]:
    """Return copies of a document with one place replaced by each piece of garbage."""
    yield from GARBAGE
    if isinstance(value, dict):
        for key in value:
            for inner in spoiled(value[key]):
                yield {**value, key: inner}
        yield {**value, "nosuchkey": 1}
    elif isinstance(value, list):
        for index in range(len(value)):
            for inner in spoiled(value[index]):
                yield [*value[:index], inner, *value[index + 1 :]]


SAMPLES: dict[str, dict[str, Any]] = {
    "gpu": {
        "driver": "simulated",
        "simulated": [{"memory": "1Gi", "mig": ["1g.10gb"]}],
        "health": {"strikes": 1},
        "resources": [
            {
                "resource": "a.b/c",
                "sharing": "memory",
                "unit": "1Gi",
                "mps": {},
                "overuse": {"grace": "1s"},
                "cards": {"index": [0]},
            },
            {"resource": "a.b/d", "sharing": "replicas", "replicas": 2, "cards": {"index": [1]}},
            {
                "resource": "a.b/e",
                "sharing": "mig",
                "strategy": "mixed",
                "profiles": {"1g.10gb": "a.b/f"},
                "cards": {"index": [2]},
            },
        ],
    },
    "hostdev": {
        "resources": [
            {
                "resource": "a.b/c",
                "groups": [{"nodes": [{"path": "/dev/null", "container_path": ""}], "count": 1}],
                "mounts": [{"host_path": "/a", "container_path": "/b"}],
                "env": {"A": "b"},
            }
        ]
    },
    "hostdir": {"roots": {"a": {"path": "/srv"}}},
    "fuse": {"programs": {"a": {"command": ["a", "{mountpoint}"]}}},
    "nfs": {"servers": ["a"]},
    "smb": {"servers": ["a"]},
    "image": {"roots": {"a": {"path": "/srv"}}},
}


@pytest.mark.parametrize("name", sorted(installed()))
def test_no_phrase_of_pydantic_reaches_anybody(name: str) -> None:
    model = find(name).config_model
    document: dict[str, Any]
    try:
        document = model().model_dump(mode="json")
    except ValidationError:
        document = SAMPLES[name]
        model.model_validate(document)
    wrong = 0
    for tried in spoiled(document):
        if not isinstance(tried, dict):
            continue
        try:
            model.model_validate(tried)
        except ValidationError as error:
            wrong += 1
            for mistake in explain(error, model, tried):
                assert not PYDANTIC.search(mistake.text), mistake
                assert "breaks the rule" not in mistake.text, mistake
    assert wrong


@pytest.mark.parametrize(
    ("uses", "config", "key"),
    [
        ("gpu", {"resources": [{"sharing": "exclusive", "resource": "gpu"}], "poll": 0}, "resources.0.resource"),
        (
            "gpu",
            {"resources": [{"sharing": "memory", "count_resource": "count"}], "poll": 0},
            "resources.0.count_resource",
        ),
        (
            "gpu",
            {"resources": [{"sharing": "mig", "strategy": "mixed", "profiles": {"1g": "mig"}}], "poll": 0},
            "resources.0.profiles.1g",
        ),
        ("hostdev", {"resources": [{"resource": "fuse"}]}, "resources.0.resource"),
        ("bridge", {"names": ["a/b"], "data_dir": 5}, "names.0"),
        ("host-local", {"names": ["a/b"], "data_dir": 5}, "names.0"),
        ("loopback", {"where_absent": ["a/b"], "colour": 5}, "where_absent.0"),
        ("loopfile", {"driver": "a b", "max_size": 0}, "driver"),
        ("hostdir", {"driver": "a b"}, "driver"),
        ("tmpfs", {"driver": "a b", "max_size": 0}, "driver"),
    ],
)
def test_a_wrong_name_of_what_is_served_is_told_with_its_key_beside_other_mistakes(
    uses: str, config: dict[str, Any], key: str
) -> None:
    model = find(uses).config_model
    with pytest.raises(ValidationError) as caught:
        model.model_validate(config)
    keys = [".".join(map(str, one.location)) for one in explain(caught.value, model, config)]
    assert key in keys
    assert len(keys) > 1
