"""The unit that runs the daemon (systemd.service(5)).

Owns: `nodeplug.service` among the administrator's units, that systemd reads it, and that the daemon runs by it.
Refuses: a unit of that name that somebody else has written or changed; what one node needs otherwise goes into drop-ins
(`systemctl edit nodeplug`), which are never touched. Other service managers.
"""

import hashlib
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.errors import InvalidRequest, NotFound, NotReady, PluginError
from nodeplug.install.atomic import put_file
from nodeplug.install.atomic import remove as remove_file
from nodeplug.install.ownership import ForeignFile
from nodeplug.install.report import Report
from nodeplug.install.scripts import find_scripts

UNIT: Final = "nodeplug.service"
FOLDER: Final = Path("/etc/systemd/system")
MARKER: Final = (
    "# Installed by nodeplug; `nodeplug uninstall --systemd` removes it. For changes: systemctl edit nodeplug\n"
)
_DIGEST: Final = "# sha256 of what follows: "
_PROGRAM: Final = "/opt/nodeplug/bin/nodeplug"
"""Where the unit of the sources has the program; an installation puts its own path there."""
_BOOTED: Final = Path("/run/systemd/system")
_START: Final = 330.0
"""Seconds: longer than TimeoutStartSec of the unit, so that it is systemd that gives up."""
_QUICK: Final = 60.0


@dataclass(slots=True)
class Service:
    """What was done about the unit.

    Attributes:
        report: of its file.
        steps: the commands of systemctl(1) that were run, in order.
        state: what `systemctl is-active` says at the end; empty when the unit was removed.
    """

    report: Report = field(default_factory=Report)
    steps: list[str] = field(default_factory=list)
    state: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"unit": str(FOLDER / UNIT), "steps": self.steps, "state": self.state}

    def run(self, *words: str, seconds: float = _QUICK) -> None:
        """Have systemctl do something.

        Raises:
            PluginError: it fails, or does not end in time.
        """
        self.steps.append(" ".join(words))
        done = _systemctl(*words, seconds=seconds)
        if done.returncode:
            raise PluginError(
                f"systemctl {' '.join(words)} failed: {' '.join(done.stderr.split()) or f'status {done.returncode}'}; "
                "`journalctl -u nodeplug` has what the daemon said"
            )


def provide(config: Path, default: Path) -> Service:
    """Have systemd run the daemon, now and at each start of the node.

    A daemon that runs already, by a unit that has been changed, is replaced without a call that fails
    (`systemctl reload`). Where nothing has changed, nothing is done.

    Args:
        config: the main configuration file.
        default: the one that the daemon reads when none is named.

    Raises:
        NotReady: this node has another service manager, or is a container without one.
        ForeignFile: a unit of this name is somebody else's.
        PluginError: systemd refuses, or the daemon does not start.
    """
    _check_booted()
    service, path = Service(), FOLDER / UNIT
    text = render(_program(), config if config != default else None)
    if path.exists() and not _is_ours(path):
        raise ForeignFile(
            f"{path} has not been written by nodeplug, or has been changed since: put changes into a drop-in "
            "(systemctl edit nodeplug), remove the file, and install again"
        )
    put_file(path, text.encode(), 0o644, service.report, _is_ours)
    changed = not service.report.unchanged
    if changed:
        service.run("daemon-reload")
    if _answer("is-enabled") != "enabled":
        service.run("enable", UNIT)
    if _answer("is-active") != "active":
        service.run("start", UNIT, seconds=_START)
    elif changed:
        service.run("reload", UNIT, seconds=_START)
    service.state = _answer("is-active")
    return service


def withdraw() -> Service:
    """Stop the daemon, and remove its unit; one that is gone already is no error.

    Raises:
        NotReady: as for `provide`.
        ForeignFile: the unit is somebody else's.
        PluginError: systemd refuses.
    """
    _check_booted()
    service, path = Service(), FOLDER / UNIT
    if path.exists() and not _is_ours(path):
        raise ForeignFile(
            f"{path} has not been written by nodeplug, or has been changed since, and stays, as the daemon does: "
            "systemctl disable --now nodeplug"
        )
    if path.exists():
        service.run("disable", "--now", UNIT, seconds=_START)
        remove_file(path, service.report)
        service.run("daemon-reload")
    return service


def render(program: Path, config: Path | None) -> str:
    """Return the unit for one installation.

    Args:
        program: the command `nodeplug` of this installation.
        config: the configuration file, where it is not the usual one.

    Raises:
        NotFound: the unit is missing from this installation.
        InvalidRequest: a path cannot stand in a unit.
    """
    lines = _source().read_text(encoding="utf-8")
    words = [str(program)]
    options = [] if config is None else ["--config", str(config.absolute())]
    for word in (*words, *options):
        if not re.fullmatch(r"[\w@./+:,=-]+", word):
            raise InvalidRequest(
                f"{word!r} cannot stand in {UNIT}: its path has blanks or characters that systemd reads"
            )
    lines = re.sub(
        rf"^(Exec\w+=){re.escape(_PROGRAM)} (\w+)$",
        lambda found: found[1] + shlex.join([*words, found[2], *options]),
        lines,
        flags=re.MULTILINE,
    )
    return f"{MARKER}{_DIGEST}{_digest(lines)}\n{lines}"


def _source() -> Path:
    scripts = find_scripts()
    looked = (scripts.parent / "systemd" / UNIT, scripts.parent / "deploy" / UNIT)
    for path in looked:
        if path.is_file():
            return path
    raise NotFound(f"{UNIT} is in none of {', '.join(str(path.parent) for path in looked)}; reinstall nodeplug")


def _is_ours(path: Path) -> bool:
    """Whether a unit is as some installation of nodeplug has written it, or a copy of the one in the sources."""
    whole = path.read_text(encoding="utf-8", errors="replace")
    head, _, text = whole.removeprefix(MARKER).partition("\n")
    return head == f"{_DIGEST}{_digest(text)}" or whole == _source().read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _program() -> Path:
    """Return the command of this installation, beside its Python."""
    program = Path(sys.executable).with_name("nodeplug")
    if not os.access(program, os.X_OK):
        raise NotFound(f"there is no {program} that systemd could start; install nodeplug with pip")
    return program


def _check_booted() -> None:
    if not _BOOTED.is_dir():  # sd_booted(3)
        raise NotReady(
            f"systemd does not run here ({_BOOTED} is missing): leave --systemd out, and have your service manager run "
            "`nodeplug serve`"
        )


def _answer(question: str) -> str:
    return _systemctl(question, UNIT, seconds=_QUICK).stdout.strip()


def _systemctl(*words: str, seconds: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["systemctl", "--no-ask-password", *words], capture_output=True, text=True, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PluginError(f"systemctl {' '.join(words)}: {error}") from error
