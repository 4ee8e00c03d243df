"""`[extender]`, and the names that plugins claim there."""

from pathlib import Path
from typing import Any

import pytest

from nodeplug import Claim, ExtenderClaim, ExtenderVerdict, InvalidRequest, hookimpl
from nodeplug.config import ConfigError, load
from nodeplug.hosting.registry import Registry
from nodeplug.loading.classes import PluginRefused
from nodeplug.loading.examination import check_claim


def problems(folder: Path, keys: str) -> str:
    (folder / "nodeplug.toml").write_text(f"version = 1\n[extender]\n{keys}\n")
    try:
        load(folder / "nodeplug.toml")
    except ConfigError as error:
        return "\n".join(error.problems)
    return ""


@pytest.mark.parametrize(
    "keys",
    [
        "",
        'listen = "[::1]:9810"',
        'listen = "localhost:0"',
        'listen = "127.0.0.1:1"\ntls_cert = "/a"\ntls_key = "/b"',
        'listen = "0.0.0.0:9810"\ntls_cert = "/a"\ntls_key = "/b"\nclient_ca = "/c"',
        'max_body = "64Mi"\nconcurrency = 1',
    ],
)
def test_what_can_be_served_is_accepted(keys: str, tmp_path: Path) -> None:
    assert problems(tmp_path, keys) == ""


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            'listen = "0.0.0.0:9810"',
            "extender: listen = '0.0.0.0:9810' is reached by others, and whoever asks may have",
        ),
        (
            'listen = ":9810"\ntls_cert = "/a"\ntls_key = "/b"',
            "give tls_cert, tls_key and client_ca, or listen on 127.0",
        ),
        ('listen = "9810"', "extender.listen: '9810' is not an address"),
        ('listen = ""', "extender.listen: "),
        ('tls_cert = "/a"', "extender: tls_cert and tls_key go together"),
        ('client_ca = "/a"', "extender: client_ca needs TLS"),
        ('tls_cert = "a"\ntls_key = "/b"', "extender.tls_cert: 'a' is no absolute path"),
        ("concurrency = 0", "extender.concurrency: "),
        ("client_cas = 1", 'extender.client_cas: unknown key; did you mean "client_ca"?'),
    ],
)
def test_a_mistake_is_told_with_its_key_and_what_to_do(keys: str, told: str, tmp_path: Path) -> None:
    assert told in problems(tmp_path, keys)


@pytest.mark.parametrize("name", ["racks", "gpushare-scheduler", "vendor/gpu.v1", "A_1"])
def test_a_path_of_a_url_prefix_is_a_name(name: str) -> None:
    check_claim(ExtenderClaim(name))


@pytest.mark.parametrize("name", ["", "/racks", "racks/", "a//b", "a b", "a?b", "..", "a/../b", "ä", "x" * 254])
def test_a_name_that_is_no_path_of_a_url_prefix_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be the path of an extender's urlPrefix"):
        check_claim(ExtenderClaim(name))


class Idle:
    @hookimpl
    def claims(self) -> list[Claim]:
        return [ExtenderClaim("idle")]


class Filters(Idle):
    @hookimpl
    def extender_filter(self, request: Any) -> ExtenderVerdict:
        return ExtenderVerdict(nodes=tuple(request.nodes))


def test_a_claim_needs_one_of_the_verbs() -> None:
    with pytest.raises(
        PluginRefused, match="claims extender:idle but has none of extender_filter, extender_prioritize"
    ):
        Registry().load("idle", Idle(), "d")
    assert Registry().load("filters", Filters(), "d").hooks == {"claims", "extender_filter"}


def test_two_owners_of_one_extender_are_both_named() -> None:
    registry = Registry()
    registry.load("first", Filters(), "d")
    with pytest.raises(PluginRefused, match=r"extender:idle.*first"):
        registry.load("second", Filters(), "d")
