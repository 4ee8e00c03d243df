"""Command lines of FUSE programs: what a pod can make of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nodeplug import InvalidRequest, Secrets
from nodeplug_volumes.fuse import config as cfg
from nodeplug_volumes.fuse.config import FuseConfig, Program

S3: dict[str, Any] = {
    "command": ["s3fs", "{bucket}", "{mountpoint}", "-o", "url={url},passwd_file={secrets}/passwd"],
    "options": {"bucket": {}, "url": {"default": "https://s3"}},
}


def command(chosen: dict[str, str], **more: Any) -> list[str]:
    program = Program.model_validate(S3 | more)
    values = cfg.values_of("s3", program, chosen) | dict(cfg.BUILT_IN)
    return [cfg.fill(word, values) for word in program.command]


def test_a_command_has_the_options_and_the_folders_of_its_volume() -> None:
    assert command({"program": "s3", "bucket": "models"}) == [
        *("s3fs", "models", "/tmp/mountpoint", "-o"),
        "url=https://s3,passwd_file=/tmp/secrets/passwd",
    ]


@pytest.mark.parametrize("value", ["-o", "", "a,allow_root", "a b", "a\n", "ä", "a\0", "x" * 1025])
def test_a_value_that_could_be_anything_else_is_refused_unless_a_pattern_allows_it(value: str) -> None:
    with pytest.raises(InvalidRequest, match="it has to match"):
        command({"bucket": value})


@given(st.text(max_size=20))
def test_no_value_at_the_beginning_of_an_argument_becomes_an_option(value: str) -> None:
    try:
        words = command({"bucket": value}, options={"bucket": {"pattern": "(?s).*"}, "url": {"default": "u"}})
    except InvalidRequest:
        return
    assert words[1] == value
    assert not words[1].startswith("-")
    assert len(words) == 5


def test_a_value_is_not_filled_in_again() -> None:
    options = {"bucket": {"pattern": ".*"}, "url": {"default": "u"}}
    assert command({"bucket": "{secrets}"}, options=options)[1] == "{secrets}"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ({"command": ["a"]}, "has no {mountpoint}"),
        ({"command": ["{mountpoint}", "a"]}, "cannot be chosen by pods"),
        ({"command": ["a", "{mountpoint}", "{bucket}"]}, "{bucket} is neither an option nor one of mountpoint"),
        ({"command": ["a", "{mountpoint}"], "environment": {"A": "{b}"}}, "{b} is neither an option"),
        ({"command": ["a", "{mountpoint}"], "environment": {"A=": "b"}}, "cannot be the name of a variable"),
        ({"command": ["a", "{mountpoint}"], "options": {"home": {}}}, "'home' cannot be the name of an option"),
        ({"command": ["a", "{mountpoint}"], "options": {"program": {}}}, "'program' cannot be the name"),
        ({"command": ["a", "{mountpoint}"], "options": {"a": {"pattern": "("}}}, "is no regular expression"),
        ({"command": ["a", "{mountpoint}"], "secrets": {"../a": {}}}, "'../a' cannot be the name"),
        ({"command": []}, "at least 1"),
    ],
)
def test_a_program_that_could_never_be_started_is_refused_when_it_is_configured(
    program: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        FuseConfig.model_validate({"programs": {"one": program}})
    assert message in str(refused.value)


def test_secrets_go_where_the_program_takes_them() -> None:
    program = Program.model_validate(S3 | {"secrets": {"passwd": {}, "token": {"environment": "T", "required": False}}})
    given = Secrets({"passwd": b"a:b", "token": b"x", "csi.storage.k8s.io/serviceAccount.tokens": b"{}"})
    assert cfg.sort_secrets("s3", program, given) == ({"passwd": b"a:b"}, {"T": "x"})
    assert cfg.sort_secrets("s3", program, Secrets({"passwd": b"a:b"})) == ({"passwd": b"a:b"}, {})
    for wrong in ({"token": b"x"}, {"passwd": b"a", "token": b"\xff"}, {"passwd": b"a", "token": b"\0"}):
        with pytest.raises(InvalidRequest) as refused:
            cfg.sort_secrets("s3", program, Secrets(wrong))
        assert "\\xff" not in str(refused.value)
