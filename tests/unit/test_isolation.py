"""Configurations in which plugins run in one way."""

import tomllib

import pytest

from nodeplug.contract.errors import InvalidRequest
from nodeplug.testing.isolation import isolated, isolations

TABLES = """
[plugins.wire]
uses = "wire:Wire"
[plugins.host-local.config]
data_dir = "/addresses"
[plugins.audit]
isolation = "thread"
"""


def ways(text: str) -> dict[str, str]:
    return {name: section.get("isolation", "") for name, section in tomllib.loads(text)["plugins"].items()}


@pytest.mark.parametrize(
    ("asked", "found"), [("thread", ["thread"]), ("process", ["process"]), ("both", ["thread", "process"])]
)
def test_both_is_one_after_the_other(asked: str, found: list[str]) -> None:
    assert list(isolations(asked)) == found


def test_another_word_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidRequest, match="'fork' is no isolation; take thread, process or both"):
        isolations("fork")


def test_sections_that_say_nothing_run_in_the_given_way() -> None:
    assert ways(isolated(TABLES, "process")) == {"wire": "process", "host-local": "process", "audit": "thread"}


def test_named_sections_run_in_the_given_way_whatever_they_say() -> None:
    names = {"wire", "audit"}
    assert ways(isolated(TABLES, "process", names)) == {"wire": "process", "host-local": "", "audit": "process"}


def test_everything_else_is_kept() -> None:
    document = tomllib.loads(isolated(TABLES, "process"))
    assert document["plugins"]["host-local"]["config"] == {"data_dir": "/addresses"}
    assert document["plugins"]["wire"]["uses"] == "wire:Wire"


@pytest.mark.parametrize("text", ["[plugins.", "", "plugins = 3", "[plugins]\nwire = 3\n"])
def test_what_is_wrong_is_left_for_the_daemon_to_say(text: str) -> None:
    assert isolated(text, "process").strip() == text.strip()
