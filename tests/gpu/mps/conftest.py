"""The programs of MPS, which stand in, and the daemons of a node that runs them."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from nodeplug.testing import folders, host
from nodeplug.testing.waiting import until
from nodeplug_gpu.mps.cards import MpsDaemons
from nodeplug_gpu.mps.record import recorded

CONTROL = """#!/bin/sh
# Stands in for nvidia-cuda-mps-control: -f serves until it is told to quit; without it, a command comes on stdin.
folder="$CUDA_MPS_PIPE_DIRECTORY"
if [ "$1" = -f ]; then
    [ -e "$(dirname "$0")/broken" ] && { echo "no driver" >&2; exit 1; }
    echo "$LD_LIBRARY_PATH" > "$(dirname "$0")/libraries"
    echo "$CUDA_MPS_LOG_DIRECTORY" > "$(dirname "$0")/logs"
    echo "$*|$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT|$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" >> "$(dirname "$0")/starts"
    echo "$CUDA_VISIBLE_DEVICES" > "$folder/control"
    trap 'rm -f "$folder/control"; exit 0' TERM
    while [ ! -e "$folder/quit" ]; do
        [ -e "$(dirname "$0")/chatty" ] && echo "a line" 2>/dev/null
        sleep 0.05
    done
    rm -f "$folder/control" "$folder/quit"
else
    read -r command
    case "$command" in
        quit) touch "$folder/quit" ;;
        get_default_active_thread_percentage)
            [ -e "$(dirname "$0")/mute" ] && exec sleep 600
            [ -e "$folder/control" ] && echo 100.0 ;;
    esac
fi
"""
SMI = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/modes"
"""


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeplug_gpu.mps.daemon.PING_INTERVAL", 0.2)
    monkeypatch.setattr("nodeplug_gpu.mps.daemon.PING_TIMEOUT", 2.0)
    monkeypatch.setattr("nodeplug_gpu.mps.daemon.START_TIMEOUT", 2.0)


@pytest.fixture
def driver_root(tmp_path: Path) -> Path:
    programs = tmp_path / "driver" / "usr" / "bin"
    programs.mkdir(parents=True)
    for name, text in (("nvidia-cuda-mps-control", CONTROL), ("nvidia-smi", SMI)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return tmp_path / "driver"


@pytest.fixture
def daemons(driver_root: Path, short_path: Path) -> Iterator[Callable[..., MpsDaemons]]:
    made: list[MpsDaemons] = []

    def make(run_dir: Path = short_path, former: Sequence[Path] = ()) -> MpsDaemons:
        given = replace(host(short_path), run_dir=run_dir)
        made.append(MpsDaemons(given, driver_root, lambda: None, former))
        return made[-1]

    yield make
    for one in made:
        one.stop()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("gpu:mps:")])
    for record in short_path.rglob("mps/*/daemon.json"):  # no thread is left that could write or remove one
        pid = recorded(record)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    folders.unmount_below(short_path)
