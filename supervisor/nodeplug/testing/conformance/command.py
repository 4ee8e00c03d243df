"""The body of `nodeplug verify`: from arguments to a report and an exit status.

Owns: which plugin a name means, reading files, progress, and a mount namespace in which folders that plugins use by
default are empty ones.
Refuses: rules, and the command line's own words.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nodeplug.config import Configuration, PluginSection, load, load_drop_in
from nodeplug.contract.errors import PluginError
from nodeplug.contract.mounts import mount
from nodeplug.process.environment import copy_environment
from nodeplug.testing import namespaces
from nodeplug.testing.conformance import conformance
from nodeplug.testing.conformance.report import STYLES, Finding, Report
from nodeplug.testing.conformance.rules import NEEDS_ROOT, RULES, choose
from nodeplug.testing.isolation import isolations
from nodeplug.testing.secrets_file import read_secrets

PASSED: Final = 0
FAILED: Final = 1
MISUSED: Final = 2
UNJUDGED: Final = 3
_INSIDE: Final = "NODEPLUG_VERIFY_INSIDE"
_SHARED: Final = ("/var/lib/cni", "/run/cni", "/etc/cni", "/opt/cni/bin", "/var/lib/kubelet")
"""Folders of the machine that plugins write to by default: not those of a run."""


class Misuse(PluginError):
    """The arguments do not say what to verify; exit status 2."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line said.

    Attributes:
        name: a section of the configuration, an entry-point name, `module:Class`, or a file `*.toml` as in `plugins.d`
            with one section.
        config: the main configuration file; it need not exist unless a section is named.
        root: what `--root` said.
        conflist: a network list or network configuration in a file.
        options: of a FlexVolume: JSON, or the name of a file with JSON.
        secrets: a file with the FlexVolume's Secret, see `read_secrets`.
        beside: further plugins, which run on the same node; a file may have several sections.
        isolation: how the daemon runs the plugin: thread, process or both.
        rules: names of rules; all when empty.
        as_json: print the report as JSON.
    """

    name: str
    config: Path
    root: Path | None = None
    conflist: Path | None = None
    options: str = ""
    secrets: Path | None = None
    beside: Sequence[str] = ()
    isolation: str = "both"
    rules: Sequence[str] = ()
    as_json: bool = False


def verify(asked: Asked) -> int:
    """Verify a plugin and print the report.

    Returns:
        The exit status: 0 all rules passed, 1 one failed, 3 none failed but some take root.

    Raises:
        Misuse: the arguments are wrong.
    """
    try:
        uses, keywords = _arguments(asked)
    except (PluginError, OSError) as error:
        raise Misuse(str(error)) from None
    if os.geteuid() == 0 and not os.environ.get(_INSIDE):
        command = [*namespaces.command(network=False), sys.executable, "-m", "nodeplug", *sys.argv[1:]]
        return subprocess.run(command, env={**copy_environment(), _INSIDE: "1"}, check=False).returncode
    if os.environ.get(_INSIDE):
        _empty_folders()
    try:
        report = conformance(uses, **keywords, progress=_progress if sys.stderr.isatty() else lambda _: None)
    except PluginError as error:
        raise Misuse(str(error)) from None
    sys.stdout.write((report.as_json() if asked.as_json else str(report)) + "\n")
    return _status(report)


def _status(report: Report) -> int:
    if not report.passed:
        return FAILED
    return UNJUDGED if any(finding.seen == NEEDS_ROOT for finding in report) else PASSED


def _progress(finding: Finding) -> None:
    way = f" ({finding.isolation[0]})" if finding.isolation else ""
    end = "\n" if finding.outcome == "failed" else ""
    sys.stderr.write(f"\r\x1b[K{finding.outcome:15} {finding.rule}{way}{end}")
    sys.stderr.flush()


def _empty_folders() -> None:
    for folder in _SHARED:
        if Path(folder).is_dir():
            mount("tmpfs", folder, "tmpfs", options=["mode=755"])


def _arguments(asked: Asked) -> tuple[str, dict[str, Any]]:
    found = _sections(asked, asked.name)
    if len(found) > 1:
        raise Misuse(f"{asked.name} has {len(found)} plugins; verify a file with one, and give others with --beside")
    [(uses, config)] = found.values()
    beside = {
        section: dict(zip(("uses", "config"), plugin, strict=True))
        for name in asked.beside
        for section, plugin in _sections(asked, name).items()
    }
    keywords: dict[str, Any] = {
        "config": config or None,
        "cni": _json(asked.conflist.read_text(encoding="utf-8"), asked.conflist) if asked.conflist else None,
        "volume_options": _options(asked.options) if asked.options else None,
        "secrets": read_secrets(asked.secrets) if asked.secrets else None,
        "beside": {name: {key: value for key, value in one.items() if value} for name, one in beside.items()} or None,
        "isolation": asked.isolation,
        "rules": tuple(asked.rules) or None,
    }
    isolations(asked.isolation)
    choose(keywords["rules"])
    return uses, keywords


def _sections(asked: Asked, name: str) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
    """Return what a name means: by section, what it uses and its configuration; several only from a file."""
    if name.endswith(".toml"):
        sections = load_drop_in(Path(name))
    else:
        sections = {name: PluginSection(uses=name) if ":" in name else _section(asked, name)}
    return {name: (section.uses or name, section.config) for name, section in sections.items()}


def _section(asked: Asked, name: str) -> PluginSection:
    return _configuration(asked).plugins.get(name) or PluginSection(uses=name)


def _configuration(asked: Asked) -> Configuration:
    if not asked.config.exists():
        return Configuration(version=1)
    return load(asked.config, asked.root)


def _options(given: str) -> Any:
    path = Path(given)
    return _json(given, "--options") if given.lstrip().startswith("{") else _json(path.read_text("utf-8"), path)


def _json(text: str, where: object) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Misuse(f"{where} is not JSON: {error}") from None


def catalogue() -> str:
    """Return every rule with what is expected, by style, as text."""
    lines = []
    for style in STYLES:
        own = [one for one in RULES.values() if one.style == style]
        lines += [f"{style}:", *(f"  {one.name:40} {one.expected}" for one in own)]
    return "\n".join(lines)
