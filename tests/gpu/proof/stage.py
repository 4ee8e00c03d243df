"""What a stage of the proof is, and what it says.

Owns: a stage's values, and the file to which it writes while it goes: what is there counts, however the stage ends.
Refuses: to run one (`running` does), and to take back what a stage has changed: the stage says how, and the runner does
it, also when the stage was killed.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["passed", "recorded", "failed", "skipped"]
"""`recorded`: the stage has nothing that could fail, and writes down what it sees."""
Figure = float | int | str | bool | None


class Skipped(Exception):
    """The machine lacks something; the text names it."""


class Disproved(Exception):
    """The stage cannot go on: what it found is not what it is to prove."""


@dataclass(frozen=True, slots=True)
class Notes:
    """What one stage writes down.

    Attributes:
        file: one JSON object a line.
    """

    file: Path

    def figure(self, name: str, value: Figure, unit: str = "") -> None:
        """Note a figure by its name, with its unit."""
        self._write({"figure": name, "value": value, "unit": unit})

    def seen(self, sentence: str) -> None:
        """Note what was seen, where there is nothing to fail."""
        self._write({"seen": sentence})

    def lacking(self, sentence: str) -> None:
        """Note a part of the stage that this machine cannot do; the others go on."""
        self._write({"lacking": sentence})

    def expect(self, true: object, sentence: str) -> None:
        """Note a fault unless something is true; the stage goes on."""
        if not true:
            self._write({"fault": sentence})

    def undo(self, kind: Literal["unlink", "rmdir", "run"], *what: str) -> None:
        """Note how something is taken back; to be said before it is done. The last one is taken back first."""
        self._write({"undo": [kind, *what]})

    def end(self, verdict: Verdict, reason: str = "") -> None:
        """Note that the stage has ended by itself."""
        self._write({"end": verdict, "reason": reason})

    def _write(self, line: Mapping[str, Any]) -> None:
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def read(self) -> Sequence[Mapping[str, Any]]:
        """Return the lines; the last one may have been cut off with the stage."""
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage.

    Attributes:
        number: as in the documentation.
        name: of its module in `stages`.
        seconds: that it may take.
        proves: in a few words.
        settings: it changes settings of the card or the machine, and runs only if that was asked for.
    """

    number: int
    name: str
    seconds: float
    proves: str
    settings: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """How a stage ended.

    Attributes:
        stage: which.
        verdict: of all that it has noted.
        reason: why it was skipped or has failed; empty otherwise.
        seconds: that it took.
        notes: its lines.
    """

    stage: Stage
    verdict: Verdict
    reason: str
    seconds: float
    notes: Sequence[Mapping[str, Any]] = ()

    def of(self, kind: str) -> list[str]:
        """Return the sentences of one kind."""
        return [str(line[kind]) for line in self.notes if kind in line]


Run = Callable[[Any, Notes], None]
"""A stage's function: what it has of the machine, and where it writes."""
