"""A Secret in a file, for `nodeplug try` and `verify`: everybody on the machine can read argv.

Owns: both forms of the file.
Refuses: to show any value, also in messages.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeplug.contract.errors import InvalidRequest
from nodeplug.contract.values import Secrets


def read_secrets(path: Path) -> Secrets:
    """Read a Secret.

    Args:
        path: a file with one JSON object of strings, or with lines `KEY=VALUE`, as `kubectl create secret generic
            --from-env-file` takes them: a value is everything after the first `=`; empty lines and those that start
            with `#` are skipped.

    Raises:
        InvalidRequest: the file cannot be read, or is neither; the message has no value.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path} holds no secrets: it is not UTF-8") from None
    values = _of_json(path, text) if text.lstrip().startswith("{") else _of_lines(path, text)
    return Secrets({key: value.encode() for key, value in values.items()})


def _of_json(path: Path, text: str) -> Mapping[str, str]:
    try:
        document: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"{path} is not JSON: {error.msg}, line {error.lineno} column {error.colno}") from None
    wrong = [key for key, value in document.items() if not isinstance(value, str)]
    if wrong:
        raise InvalidRequest(f"{path}: the value of {wrong[0]!r} is not a string; put every value into quotes")
    return document


def _of_lines(path: Path, text: str) -> Mapping[str, str]:
    values = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise InvalidRequest(f"{path}: line {number} is not KEY=VALUE; or write one JSON object")
        values[key.strip()] = value
    return values
