"""The proof's own rules: what it says without a card, how a stage ends, and that nothing is left behind."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.nvml.mock import MockNvml
from tests.gpu.proof import __main__ as command
from tests.gpu.proof import probe
from tests.gpu.proof.machine import ROOT
from tests.gpu.proof.report import hardware_row, markdown
from tests.gpu.proof.running import judged, undone
from tests.gpu.proof.stage import Notes, Stage
from tests.gpu.proof.stages import STAGES

from nodeplug.testing.waiting import until

STAGE = Stage(7, "xids", 40, "something")


def proof(*options: str) -> "subprocess.CompletedProcess[str]":
    made = [sys.executable, "-m", "tests.gpu.proof", *options]
    return subprocess.run(made, cwd=ROOT, capture_output=True, text=True, check=False)


def test_without_a_card_it_says_so_in_one_sentence_and_writes_no_report(tmp_path: Path) -> None:
    done = proof("--driver-root", str(tmp_path), "--out", str(tmp_path / "report"))
    assert done.returncode == command.NO_CARD
    (line,) = done.stdout.splitlines()
    assert line.startswith("there is no card to prove anything on: there is no libnvidia-ml.so.1 below")
    assert not (tmp_path / "report").exists()


def bare(python: Path, tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    """Run it as from a checkout that was not set up."""
    options = ["--driver-root", str(tmp_path), "--out", str(tmp_path / "report")]
    made = [str(ROOT / ".ci" / "gpu-proof"), str(python), str(tmp_path / "no-venv"), "", *options]
    return subprocess.run(made, capture_output=True, text=True, check=False)


@pytest.mark.whole
def test_from_a_bare_checkout_it_runs_with_packages_that_are_there(tmp_path: Path) -> None:
    done = bare(Path(sys.executable), tmp_path)
    assert (done.returncode, done.stderr) == (command.NO_CARD, "")
    assert done.stdout.startswith("there is no card")


def test_packages_that_are_missing_are_named_with_the_way_to_get_them(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without installed packages
    python.chmod(0o755)
    done = bare(python, tmp_path)
    assert done.returncode == 2
    assert "this Python lacks, for the proof: pluggy>=1.5 pydantic" in done.stderr
    assert "make gpu-proof WHEELS=wheels" in done.stderr


@pytest.mark.whole
def test_a_driver_that_shows_no_card_is_no_failure(driver: MockNvml, tmp_path: Path) -> None:
    driver.state.count = 0
    done = proof("--driver-root", str(driver.root), "--sysfs", str(driver.sysfs), "--out", str(tmp_path / "report"))
    assert (done.returncode, "the driver is there, and shows no card" in done.stdout) == (command.NO_CARD, True)


@pytest.mark.whole
def test_a_driver_that_crashes_costs_no_more_than_the_look(driver: MockNvml, tmp_path: Path) -> None:
    driver.fail("nvmlDeviceGetCount_v2", 0xDEAD)
    done = proof("--driver-root", str(driver.root), "--out", str(tmp_path / "report"))
    assert (done.returncode, "ended with -11" in done.stdout) == (command.NO_CARD, True)


@pytest.mark.programs("git")
@pytest.mark.soak
def test_a_stage_that_does_not_end_is_killed_with_all_that_it_started_and_the_next_one_runs(
    driver: MockNvml, tmp_path: Path
) -> None:
    driver.hang("nvmlDeviceGetSupportedEventTypes")
    out = tmp_path / "report"
    places = ["--driver-root", str(driver.root), "--sysfs", str(driver.sysfs), "--out", str(out), "--suite", "mock"]
    done = proof(*places, "--stages", "0", "1", "--budget", "30")
    assert done.returncode == command.FAILED
    first, second = json.loads((out / "report.json").read_text())["stages"]
    assert (first["verdict"], second["verdict"]) == ("recorded", "failed")
    assert second["reason"].startswith("did not end within")
    assert any(one["name"] == "index and minor number" for one in second["figures"])


@pytest.mark.whole
@pytest.mark.programs("git")
def test_who_is_told_to_end_takes_everything_back_first(driver: MockNvml, tmp_path: Path) -> None:
    driver.hang("nvmlDeviceGetSupportedEventTypes")
    out = tmp_path / "report"
    places = ["--driver-root", str(driver.root), "--sysfs", str(driver.sysfs), "--out", str(out), "--suite", "mock"]
    command_line = [sys.executable, "-m", "tests.gpu.proof", *places, "--stages", "0", "1"]
    running = subprocess.Popen(command_line, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    until(lambda: (out / "report.json").exists() and driver.calls("nvmlDeviceGetSupportedEventTypes"))
    running.terminate()
    said, _ = running.communicate()
    assert (running.returncode, "interrupted" in said) == (command.INTERRUPTED, True)
    document = json.loads((out / "report.json").read_text())
    assert ([one["number"] for one in document["stages"]], document["missing"]) == ([0], [1])


def test_stages_that_change_settings_run_only_when_that_was_asked_for() -> None:
    usual = command.chosen(None, settings=False)
    assert not any(stage.settings for stage in usual)
    assert command.chosen(None, settings=True) == list(STAGES)


def test_the_page_has_the_stages_as_they_are() -> None:
    page = (ROOT / "docs" / "gpu-hardware.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \| ([^|]+) \|", page, flags=re.MULTILINE)
    assert [(int(number), float(seconds), name, proves) for number, seconds, name, proves in rows] == [
        (stage.number, stage.seconds, stage.name, stage.proves) for stage in STAGES
    ]


def test_what_a_stage_has_noted_is_taken_back_the_last_change_first(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes")
    folder, link = tmp_path / "made", tmp_path / "link"
    notes.undo("rmdir", str(folder))
    folder.mkdir()
    notes.undo("unlink", str(link))
    link.symlink_to("/nowhere")
    notes.undo("run", "rm", str(folder / "file"))
    (folder / "file").touch()
    assert undone(notes.read()) == []
    assert not folder.exists()
    assert not link.is_symlink()


def test_what_cannot_be_taken_back_is_said(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes")
    notes.undo("run", "false")
    (left,) = undone(notes.read())
    assert left.startswith("left behind: `run false` failed")


def test_all_stages_but_those_that_change_settings_take_less_than_ten_minutes() -> None:
    assert sum(stage.seconds for stage in STAGES if not stage.settings) <= 600
    assert command.BUDGET + probe.PATIENCE + 30 <= 600


@pytest.mark.parametrize(
    ("lines", "overdue", "verdict", "reason"),
    [
        ([{"end": "passed", "reason": ""}], "", "passed", ""),
        ([{"fault": "a"}, {"fault": "b"}, {"end": "passed", "reason": ""}], "", "failed", "a; b"),
        ([{"fault": "a"}, {"end": "skipped", "reason": "no MPS"}], "", "failed", "a; no MPS"),
        ([{"end": "skipped", "reason": "no MPS"}], "", "skipped", "no MPS"),
        ([{"figure": "x", "value": 1, "unit": ""}], "did not end within 5 s", "failed", "did not end within 5 s"),
        ([], "", "failed", "its process ended before it did: out of memory"),
    ],
)
def test_a_fault_fails_a_stage_however_it_ends(
    lines: list[dict[str, Any]], overdue: str, verdict: str, reason: str
) -> None:
    result = judged(STAGE, lines, 1.0, overdue, "out of memory")
    assert (result.verdict, result.reason) == (verdict, reason)


def test_notes_that_were_cut_off_are_read_up_to_there(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes")
    notes.figure("a", 1)
    with notes.file.open("a") as file:
        file.write('{"figure": "b", "va')
    assert [line["figure"] for line in notes.read()] == ["a"]


def test_the_report_names_card_driver_kernel_and_each_verdict() -> None:
    stage = {"number": 7, "name": "xids", "verdict": "failed", "reason": "no | event", "seconds": 3.0}
    stage |= {"figures": [{"name": "late", "value": 1.23456, "unit": "s"}], "seen": [], "lacking": []}
    skipped = {**stage, "number": 8, "verdict": "skipped", "reason": "needs root", "figures": []}
    document = {
        "cards": [{"model": "NVIDIA H200", "memory": 141 << 30}],
        "driver": "580.1",
        "kernel": "6.1.0",
        "python": "3.12.1",
        "root": False,
        "commit": "abc",
        "begun": "2026-11-26T10:00:00+00:00",
        "seconds": 4.0,
        "stages": [stage, skipped],
        "missing": [9],
    }
    text = markdown(document)
    assert "| 7 | xids | failed | 3.0 | no \\| event |" in text
    assert "- late: 1.235 s" in text
    assert "| 9 | | did not begin | | |" in text
    assert "- kernel: 6.1.0" in text
    assert hardware_row(document) == "| NVIDIA H200 | 580.1 | 2026-11-26 | abc | failed 7, skipped 8 |"
