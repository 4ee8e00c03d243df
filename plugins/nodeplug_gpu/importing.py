"""From a file of NVIDIA's device plugin to a file of ours.

Owns: reading it, wherever it stands, and the text that is printed.
Refuses: what its keys mean (`nvidia_config`).
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from nodeplug import InvalidRequest, NotFound
from nodeplug.commands import toml
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.nvidia_config import Translation, translate


def imported(file: Path, key: str, variables: Iterable[str]) -> Translation:
    """Read and translate.

    Args:
        file: the configuration, or a ConfigMap with some; `-` is stdin.
        key: which of a ConfigMap; empty where there is one.
        variables: of the plugin's container, `NAME=VALUE`.

    Raises:
        NotFound: there is no such file, or no such key.
        InvalidRequest: it is not what NVIDIA's plugin reads, or says what cannot be here.
    """
    environment = dict(_pair(one) for one in variables)
    document = _document(_yaml(file, _text(file)), key)
    try:
        found = translate(document, environment)
        GpuConfig.model_validate(found.config)
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise InvalidRequest(f"{file} cannot be translated: {'; '.join(faults)}") from None
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    return found


def rendered(found: Translation) -> str:
    """Return the table as TOML, with the notes before it."""
    notes = "".join(f"# {note}\n" for note in found.notes)
    return f"{notes}{toml({'plugins': {'gpu': {'config': found.config}}})}"


def _pair(variable: str) -> tuple[str, str]:
    name, separator, value = variable.partition("=")
    if not separator:
        raise InvalidRequest(f"--env {variable}: it must be NAME=VALUE")
    return name, value


def _text(file: Path) -> str:
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"{file} cannot be read: {error}") from None


def _yaml(file: Path, text: str) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidRequest(f"{file} is no YAML: {error}") from None
    if not isinstance(found, dict):
        raise InvalidRequest(f"{file} is no configuration: it must begin with `version: v1`")
    return found


def _document(found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    if found.get("kind") != "ConfigMap":
        if key:
            raise InvalidRequest(f"--key {key} is for a ConfigMap, and this is none")
        return found
    files = found.get("data") or {}
    if not key and len(files) != 1:
        raise InvalidRequest(f"the ConfigMap has several files; choose one with --key: {', '.join(files)}")
    chosen = key or next(iter(files))
    if chosen not in files:
        raise NotFound(f"the ConfigMap has no {chosen}; it has {', '.join(files)}")
    return _yaml(Path(chosen), str(files[chosen]))
