"""A rehearsal: the plugin alone in a process of its own, and what was seen of it.

Owns: running that process and reading what it wrote.
Refuses: the acts themselves (`probe`), and to judge them (`contract` and `device`).
"""

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from nodeplug.testing.conformance.subject import Subject
from nodeplug.testing.conformance.verdict import Broken, NotApplicable
from nodeplug.testing.forked import Forked, start

Script = Literal["life", "kill", "again"]
_PROBE: Final = Path(__file__).with_name("probe.py")
"""Run as a file: as a module it would load all of `nodeplug.testing` first."""
_ACTS: Final = 12
_TAIL: Final = 1500


@dataclass(frozen=True, slots=True)
class Act:
    """One call.

    Attributes:
        name: what was tried.
        seconds: how long it took.
        hung: it did not end in time.
        error: what it raised, with the type, or None.
        stray: it raised something that is not a PluginError.
        answer: what it answered, as JSON has it.
        asked: what it was asked for, where that is needed to judge.
    """

    name: str
    seconds: float = 0.0
    hung: bool = False
    error: str | None = None
    stray: bool = False
    answer: Any = None
    asked: Any = None

    def succeed(self) -> "Act":
        """Return this act.

        Raises:
            Broken: it hung or raised.
        """
        if self.hung:
            raise Broken(f"{self.name} had not returned after {self.seconds:.1f} s")
        if self.error is not None:
            raise Broken(f"{self.name} raised {self.error}")
        return self


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What was seen in one process.

    Attributes:
        acts: by name, in order.
        document: everything else that the process wrote down.
        stdout: what was printed there.
        stderr: what was printed there.
        ended: its exit status, negative for a signal, or None when it had to be killed.
    """

    acts: Mapping[str, Act]
    document: Mapping[str, Any] = field(default_factory=dict)
    stdout: str = ""
    stderr: str = ""
    ended: int | None = None

    def act(self, name: str) -> Act:
        """Return an act.

        Raises:
            NotApplicable: it was never reached.
        """
        if name not in self.acts:
            raise NotApplicable(f"there was no {name}: {self.why_short}")
        return self.acts[name]

    @property
    def hung(self) -> Act | None:
        """The act that did not end; no other came after it."""
        return next((act for act in self.acts.values() if act.hung), None)

    @property
    def why_short(self) -> str:
        """Why something was not reached."""
        if self.hung is not None:
            return f"{self.hung.name} hung"
        failed = next((act for act in self.acts.values() if act.error is not None and act.name != "unknown key"), None)
        return "the plugin has none" if failed is None else f"{failed.name} raised {failed.error}"


def rehearse(
    subject: Subject,
    folder: Path,
    script: Script,
    patience: float,
    within: Callable[[Callable[[], Forked]], Forked],
    env: Mapping[str, str],
) -> Rehearsal:
    """Run one script of the probe.

    Args:
        subject: the plugin.
        folder: an existing folder; the same one again is the same plugin after a kill.
        script: "life" from construction to stop; "kill" starts it and kills the process; "again" starts it anew.
        patience: seconds for one act.
        within: runs a function where the process is to be started.
        env: the environment of the process.
    """
    order = {
        "uses": subject.uses,
        "config": subject.config,
        "options": subject.options,
        "folder": str(folder),
        "patience": patience,
    }
    seen = folder / "seen.json"
    seen.unlink(missing_ok=True)
    # Next to the folder: what is in the folder counts as the plugin's.
    said, stdout, stderr = (
        folder.with_name(f"{folder.name}-{script}.{name}") for name in ("order", "stdout", "stderr")
    )
    said.write_text(json.dumps(order), encoding="utf-8")
    process = within(lambda: start(str(_PROBE), [script], env, stdin=said, stdout=stdout, stderr=stderr))
    try:
        ended = process.wait(patience * _ACTS + 30)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.wait()
        return Rehearsal({"rehearsal": Act("rehearsal", error.timeout, hung=True)})
    printed, failed = (path.read_text(encoding="utf-8", errors="replace") for path in (stdout, stderr))
    if not seen.exists():
        text = f"the process ended with {ended}: {failed[-_TAIL:].strip()}"
        return Rehearsal({"rehearsal": Act("rehearsal", error=text)}, {}, printed, failed, ended)
    document = json.loads(seen.read_text(encoding="utf-8"))
    acts = {name: Act(name, **told) for name, told in document.pop("acts").items()}
    return Rehearsal(acts, document, printed, failed, ended)
