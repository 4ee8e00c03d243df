"""Stage 1: the GPU suite on NVIDIA's library: sizes of structures, error codes, events, recovery action, indexes.

Owns: which tests run: those that take a machine as a parameter; and a few calls whose answers must agree.
Refuses: to judge them: pytest does.
"""

import os
import subprocess
import sys
from typing import Any, Final
from xml.etree import ElementTree as ET

import pynvml
from tests.gpu.proof.machine import ROOT, Machine
from tests.gpu.proof.stage import Disproved, Notes

from nodeplug_gpu.driver import library
from nodeplug_gpu.driver.calls import MISSING, TIMEOUT, Calls, NvmlFailure

RECOVERY_ACTION: Final = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
XID: Final = 0x8  # nvmlEventTypeXidCriticalError
_TAIL: Final = 400
_WORDS: Final = 200


def run(machine: Machine, notes: Notes) -> None:
    """Call the library once by itself, then run the suite, and note every test that failed."""
    _calls(machine, notes)
    result = machine.folder / "suite.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={result}"]
    command += ["-k", f"{machine.suite} and not simulated", *files()]
    env = {**os.environ, "NODEPLUG_GPU": machine.suite}
    file = machine.library("libnvidia-ml.so.1")
    if file is not None and machine.suite == "real":
        env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(file.parent), os.environ.get("LD_LIBRARY_PATH")]))
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if not result.exists():
        raise Disproved(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-_TAIL:]}")
    suite = ET.parse(result).getroot().find("testsuite")
    assert suite is not None
    for name in ("tests", "failures", "errors", "skipped"):
        notes.figure(name, int(suite.get(name, "0")))
    notes.expect(int(suite.get("tests", "0")), "no test was chosen: the names of the suite have changed")
    for case in suite.iter("testcase"):
        failed = case.find("failure") if case.find("failure") is not None else case.find("error")
        if failed is not None:
            notes.expect(False, f"{case.get('name')}: {' '.join((failed.get('message') or '').split())[:_WORDS]}")
        if (skipped := case.find("skipped")) is not None:
            notes.lacking(f"{case.get('name')}: {' '.join((skipped.get('message') or '').split())[:_WORDS]}")


def files() -> list[str]:
    """Return the files whose tests run on any machine."""
    return [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests" / "gpu").glob("test_driver_*.py"))
        if "machine" in path.read_text(encoding="utf-8")
    ]


def _calls(machine: Machine, notes: Notes) -> None:
    """Call what the driver's process relies on, and compare the answers with each other."""
    library.load(machine.driver_root)
    calls = Calls()
    calls("nvmlInitWithFlags", 0)
    handle = calls("nvmlDeviceGetHandleByIndex_v2", machine.card["index"])
    minor = calls("nvmlDeviceGetMinorNumber", handle)
    notes.figure("index and minor number", f"{machine.card['index']} and {minor}")
    plain = calls("nvmlDeviceGetMemoryInfo", handle)
    wide = _tried(notes, calls, "nvmlDeviceGetMemoryInfo_v2", handle, pynvml.nvmlMemory_v2)
    if wide is not None:
        notes.expect(wide.total == plain.total, f"memory v2 says {wide.total} bytes in total, v1 {plain.total}")
        notes.figure("reserved by the driver", wide.reserved, "bytes")
    fields = _tried(notes, calls, "nvmlDeviceGetFieldValues", handle, [RECOVERY_ACTION])
    if fields is not None:
        code = fields[0].nvmlReturn
        notes.figure("recovery action", fields[0].value.uiVal if code == 0 else f"NVML error {code}")
        notes.expect(code in {0, *MISSING}, f"the recovery action (field {RECOVERY_ACTION}) gives NVML error {code}")
    try:
        calls("nvmlDeviceGetHandleByIndex_v2", calls("nvmlDeviceGetCount_v2"))
        notes.expect(False, "a card behind the last one has a handle")
    except NvmlFailure as error:
        notes.expect(error.code == 2, f"a card behind the last one: {error}; the driver layer expects error 2")
    _events(notes, calls, handle)


def _events(notes: Notes, calls: Calls, handle: Any) -> None:
    types = _tried(notes, calls, "nvmlDeviceGetSupportedEventTypes", handle)
    if types is None:
        return
    notes.figure("event types", hex(types))
    notes.expect(types & XID, "the card sends no XID events")
    events = calls("nvmlEventSetCreate")
    calls("nvmlDeviceRegisterEvents", handle, types & XID, events)
    try:
        calls("nvmlEventSetWait_v2", events, 1)
    except NvmlFailure as error:
        notes.expect(error.code == TIMEOUT, f"waiting for an event: {error}")
    calls("nvmlEventSetFree", events)


def _tried(notes: Notes, calls: Calls, symbol: str, *arguments: Any) -> Any:
    """Call what a driver may lack."""
    try:
        return calls(symbol, *arguments)
    except NvmlFailure as error:
        notes.expect(error.code in MISSING, str(error))
        notes.lacking(str(error))
    return None
