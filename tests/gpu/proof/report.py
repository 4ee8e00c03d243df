"""The report: what was proved on which machine, as JSON for programs and as Markdown for people.

Owns: its layout, and the line for docs/gpu-hardware.md.
Refuses: to leave out what failed or was skipped: each stage has its line, with the reason.
"""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.gpu.proof.machine import GIB, ROOT
from tests.gpu.proof.stage import Result, Stage

FILES: Final = ("report.json", "report.md")


@dataclass(slots=True)
class Report:
    """All results so far; written anew after each stage, so that one which is cut off has what came before.

    Attributes:
        folder: where the files are.
        found: driver and cards, as `probe` saw them.
        stages: all that were asked for.
        results: of those that have ended.
        begun: when.
    """

    folder: Path
    found: Mapping[str, Any]
    stages: Sequence[Stage]
    results: list[Result] = field(default_factory=list)
    begun: datetime = field(default_factory=lambda: datetime.now(UTC))

    def add(self, result: Result) -> None:
        """Add a result, and write both files."""
        self.results.append(result)
        self.write()

    def write(self) -> None:
        """Write both files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        document = self.document()
        for name, text in zip(FILES, (json.dumps(document, indent=1), markdown(document)), strict=True):
            temporary = self.folder / f".{name}"
            temporary.write_text(text + "\n", encoding="utf-8")
            temporary.rename(self.folder / name)

    def document(self) -> Mapping[str, Any]:
        """Return the report as one JSON object."""
        done = {result.stage.number for result in self.results}
        return {
            "version": 1,
            "begun": self.begun.isoformat(timespec="seconds"),
            "seconds": round((datetime.now(UTC) - self.begun).total_seconds(), 1),
            "commit": _commit(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "root": os.geteuid() == 0,
            "driver": self.found["driver_version"],
            "cards": self.found["cards"],
            "stages": [_stage(result) for result in self.results],
            "missing": [one.number for one in self.stages if one.number not in done],
        }


def _stage(result: Result) -> Mapping[str, Any]:
    return {
        "number": result.stage.number,
        "name": result.stage.name,
        "proves": result.stage.proves,
        "verdict": result.verdict,
        "reason": result.reason,
        "seconds": result.seconds,
        "figures": [
            {"name": line["figure"], "value": line["value"], "unit": line["unit"]}
            for line in result.notes
            if "figure" in line
        ],
        "seen": result.of("seen"),
        "lacking": result.of("lacking"),
    }


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=8"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def markdown(document: Mapping[str, Any]) -> str:
    """Return the same for people."""
    card = document["cards"][0]
    lines = [
        f"# GPU proof: {card['model']}",
        "",
        *(f"- {name}: {value}" for name, value in _head(document).items()),
        "",
        "| # | stage | verdict | s | why |",
        "|---|---|---|---|---|",
        *(_row(stage) for stage in document["stages"]),
        *(f"| {number} | | did not begin | | |" for number in document["missing"]),
        "",
        "For the table of docs/gpu-hardware.md:",
        "",
        f"    {hardware_row(document)}",
    ]
    for stage in document["stages"]:
        lines += _details(stage)
    return "\n".join(lines)


def _head(document: Mapping[str, Any]) -> Mapping[str, Any]:
    cards = ", ".join(f"{one['model']} ({one['memory'] / GIB:.1f} GiB)" for one in document["cards"])
    return {
        "cards": cards,
        "driver": document["driver"],
        "kernel": document["kernel"],
        "Python": document["python"],
        "user": "root" if document["root"] else "not root",
        "commit": document["commit"],
        "begun": document["begun"],
        "seconds": document["seconds"],
    }


def _row(stage: Mapping[str, Any]) -> str:
    why = _cell("; ".join([stage["reason"], *stage["lacking"]]).removeprefix("; "))
    return f"| {stage['number']} | {stage['name']} | {stage['verdict']} | {stage['seconds']} | {why} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _details(stage: Mapping[str, Any]) -> list[str]:
    figures = [
        f"- {one['name']}: {_shown(one['value'])}{' ' * bool(one['unit'])}{one['unit']}" for one in stage["figures"]
    ]
    said = [*figures, *(f"- {one}" for one in stage["seen"])]
    return ["", f"## {stage['number']}. {stage['name']}", "", *said] if said else []


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def hardware_row(document: Mapping[str, Any]) -> str:
    """Return the line of a run for the table of results by card."""
    by_verdict = {
        verdict: [str(one["number"]) for one in document["stages"] if one["verdict"] == verdict]
        for verdict in ("passed", "recorded", "failed", "skipped")
    }
    said = ", ".join(f"{verdict} {' '.join(numbers)}" for verdict, numbers in by_verdict.items() if numbers)
    day = document["begun"][:10]
    return f"| {document['cards'][0]['model']} | {document['driver']} | {day} | {document['commit']} | {said} |"
