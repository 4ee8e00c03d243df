"""Sizes as Kubernetes writes them, and the volume drivers' configuration against its example file."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from nodeplug import InvalidRequest
from nodeplug.fields import parse_quantity, show_quantity
from nodeplug_volumes.fuse.config import FuseConfig, Program
from nodeplug_volumes.hostdir import HostDirConfig, Root
from nodeplug_volumes.image import ImageConfig, ImageRoot
from nodeplug_volumes.loopfile_config import LoopFileConfig
from nodeplug_volumes.network.nfs import NfsConfig
from nodeplug_volumes.network.smb import SmbConfig
from nodeplug_volumes.tmpfs import TmpfsConfig

EXAMPLE = Path(__file__).parents[2] / "configs" / "plugins.d" / "volumes.toml"
MODELS: dict[str, type[BaseModel]] = {
    "loopfile": LoopFileConfig,
    "hostdir": HostDirConfig,
    "tmpfs": TmpfsConfig,
    "image": ImageConfig,
    "fuse": FuseConfig,
    "nfs": NfsConfig,
    "smb": SmbConfig,
}


def documented() -> dict[str, Any]:
    """The example with its keys switched on: prose comments have a blank behind the `#`, keys have none."""
    return tomllib.loads(re.sub(r"(?m)^#(?! )", "", EXAMPLE.read_text()))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("64Mi", 64 << 20),
        ("64MiB", 64 << 20),
        ("1.5Gi", 3 << 29),
        ("1G", 10**9),
        ("2k", 2000),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        (".5Ki", 512),
        ("1.0001Ki", 1025),
        ("7Ei", 7 << 60),
    ],
)
def test_a_quantity_means_its_bytes(text: str, size: int) -> None:
    assert parse_quantity(text) == size


@pytest.mark.parametrize(
    "text", ["", "Mi", "-1Mi", "+1", "1 Mi", "64MB", "1K", "1m", "8Ei", "1e99", "0x10", "1\n", "\u0661"]
)
def test_what_is_no_quantity_of_bytes_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_quantity(text)


@given(st.text())
def test_any_text_is_a_size_or_refused(text: str) -> None:
    try:
        assert 0 <= parse_quantity(text) < 1 << 63
    except InvalidRequest:
        return


@pytest.mark.parametrize(
    ("size", "text"), [(1000, "1000 bytes"), (64 << 20, "64Mi"), (3 << 29, "1.5Gi"), (5000, "4.9Ki")]
)
def test_a_size_is_shown_in_its_largest_unit(size: int, text: str) -> None:
    assert show_quantity(size) == text


@pytest.mark.parametrize("name", MODELS)
def test_the_example_documents_every_key_and_validates(name: str) -> None:
    config = documented()["plugins"][name]["config"]
    assert set(config) == set(MODELS[name].model_fields)
    MODELS[name].model_validate(config)


def test_the_example_documents_every_key_of_a_root() -> None:
    plugins = documented()["plugins"]
    assert set(plugins["hostdir"]["config"]["roots"]["models"]) == set(Root.model_fields)
    assert set(plugins["image"]["config"]["roots"]["data"]) == set(ImageRoot.model_fields)


def test_the_example_documents_every_key_of_a_program() -> None:
    assert set(documented()["plugins"]["fuse"]["config"]["programs"]["s3"]) == set(Program.model_fields)


def test_the_example_enables_nothing_as_it_is_shipped() -> None:
    assert tomllib.loads(EXAMPLE.read_text()) == {}


@pytest.mark.parametrize("model", [*MODELS.values(), Root])
def test_every_key_is_described(model: type[BaseModel]) -> None:
    assert all(field.description for field in model.model_fields.values())


def test_a_size_in_the_configuration_that_is_no_size_is_an_error() -> None:
    with pytest.raises(ValidationError, match="is not a size"):
        TmpfsConfig.model_validate({"max_size": "64MB"})


def test_an_unknown_key_is_an_error() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        LoopFileConfig.model_validate({"folder": "/x"})


def test_hostdir_without_a_root_is_an_error() -> None:
    with pytest.raises(ValidationError, match="at least 1"):
        HostDirConfig.model_validate({"roots": {}})
