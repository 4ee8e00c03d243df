"""Secrets in a file, as `nodeplug try` and `nodeplug verify` take them."""

from pathlib import Path

import pytest

from nodeplug.contract.errors import InvalidRequest
from nodeplug.testing.secrets_file import read_secrets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"user": "ada", "password": "p\\u00e4ss"}', {"user": b"ada", "password": "päss".encode()}),
        ("# of the share\n\nuser=ada\npassword=a=b \n", {"user": b"ada", "password": b"a=b "}),
        ("", {}),
    ],
    ids=["a JSON object", "lines", "nothing"],
)
def test_a_secret_is_read(text: str, expected: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(text)
    assert dict(read_secrets(tmp_path / "secret")) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"user": "tell-nobody"', "is not JSON"),
        ('{"user": "ada", "password": ["tell-nobody"]}', "the value of 'password' is not a string"),
        ("user=ada\ntell-nobody\n", "line 2 is not KEY=VALUE"),
        ("=tell-nobody\n", "line 1 is not KEY=VALUE"),
    ],
    ids=["broken JSON", "a list", "a line without =", "a line without a key"],
)
def test_a_mistake_is_told_without_a_value(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(text)
    with pytest.raises(InvalidRequest, match=told) as raised:
        read_secrets(tmp_path / "secret")
    assert "tell-nobody" not in str(raised.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequest, match="it is not UTF-8"):
        read_secrets(tmp_path / "secret")
