"""What survives when the daemon is killed at any instant, and when it lives long: nothing lost, nothing left."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.ended import wait_until_ended

pytestmark = pytest.mark.programs("ip", "nft")


def left_on_disk(torture: Any) -> list[str]:
    """What may not be there when every pod has ended: reserved addresses, records, deferred DELs."""
    paths = torture.node.paths
    root = torture.node.root
    folders = [root / "addresses" / "net", root / "addresses" / "chain", root / "tuning", paths.journal / "flexvolume"]
    folders += [paths.attachments, paths.spool, paths.run / "plugins/portmap/ports", paths.run / "plugins/firewall"]
    found = [path for folder in folders if folder.is_dir() for path in folder.rglob("*") if path.is_file()]
    # A killed write leaves its temporary file, which a later look removes when it is old enough to be nobody's.
    kept = re.compile(r"lock|last_reserved_ip\.\d|.*\.key|\..*\.tmp")
    return sorted(str(path) for path in found if not kept.fullmatch(path.name))


def left_in_kernel() -> list[str]:
    """What may not be there when every pod has ended: rules that name one, and limits."""
    rules = subprocess.run(["/usr/sbin/nft", "list", "ruleset"], capture_output=True, text=True, check=True).stdout
    found = [line.strip() for line in rules.splitlines() if re.search(r"nodeplug (net|chain) p\d", line)]
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    return [*found, *(line for line in links.splitlines() if line.startswith(("veth", "bwp", "ifb")))]


def torture_for(torture: Any, seconds: float) -> None:
    torture.chained = True
    torture.play(6, seconds)
    torture.settle()
    sys.stdout.write(f"{torture.lives} lives, {torture.kills} kills, {torture.ports} with the whole chain\n")
    assert left_on_disk(torture) == []
    assert left_in_kernel() == []
    assert torture.ports > 0
    assert "Traceback" not in torture.node.log
    assert torture.kills > 0
    assert torture.lives > 0


@pytest.mark.whole
def test_pods_live_and_end_while_the_daemon_is_killed(torture: Any) -> None:
    torture_for(torture, float(os.environ.get("NODEPLUG_TORTURE_SECONDS", "30")))


@pytest.mark.soak
def test_pods_live_and_end_for_long_while_the_daemon_is_killed(torture: Any) -> None:
    torture_for(torture, float(os.environ.get("NODEPLUG_TORTURE_SECONDS", "1800")))


def rate_alone(torture: Any) -> float:
    before = torture.lives
    torture.play(6, 5.0, killing=False)
    return float(torture.lives - before) / 5.0


def replace_often(torture: Any, times: int, share: float = 0.5, pause: float = 0.0) -> float:
    """Replace the daemon under a share of the load that the same node takes; return the share that was kept."""
    steady = rate_alone(torture)
    torture.rate, torture.refusals = steady * share, []
    began, before = time.monotonic(), torture.lives
    torture.replace(times, 6, pause)
    seconds, lives = time.monotonic() - began, torture.lives - before
    torture.rate = None
    after = rate_alone(torture)
    sys.stdout.write(
        f"{steady:.1f} and {after:.1f} lives/s alone; {lives} lives in {seconds:.0f} s while {times} daemons followed\n"
    )
    torture.settle()
    last = torture.node.status()["pid"]
    os.kill(last, signal.SIGTERM)  # it is no child of this process
    wait_until_ended(last)
    assert torture.failures == []
    assert torture.refusals == []
    assert lives > 0
    assert left_on_disk(torture) == []
    return float(lives / seconds / min(steady, after))  # others may have begun or ended to use the machine meanwhile


@pytest.mark.soak
def test_no_call_of_a_pod_fails_while_the_daemon_is_replaced(torture: Any) -> None:
    replace_often(torture, 3)


@pytest.mark.soak
@pytest.mark.parametrize("torture", ["process"], indirect=True)
def test_no_call_of_a_pod_fails_and_half_of_the_rate_is_kept_while_the_daemon_is_replaced_ten_times(
    torture: Any,
) -> None:
    assert replace_often(torture, 10, share=0.75, pause=5.0) >= 0.5


def held(torture: Any) -> dict[str, int]:
    """What a daemon holds that must not grow: descriptors, threads, files of its own, memory in KiB."""
    proc = Path(f"/proc/{torture.node.pid}")
    numbers = dict(re.findall(r"^(Threads|VmRSS):\s+(\d+)", (proc / "status").read_text(), re.MULTILINE))
    files = sum(len(names) for base in ("run", "var/lib/nodeplug") for *_, names in os.walk(torture.node.root / base))
    return {
        "descriptors": len(list((proc / "fd").iterdir())),
        "threads": int(numbers["Threads"]),
        "files": files,
        "memory": int(numbers["VmRSS"]),
    }


def soak_for(torture: Any, seconds: float) -> None:
    torture.play(4, seconds / 3, killing=False)  # caches, idle sockets and reapers are made here
    torture.settle()
    before = held(torture)
    torture.play(4, seconds, killing=False)
    torture.settle()
    after = held(torture)
    sys.stdout.write(f"{torture.lives} lives: {before} -> {after}\n")
    assert after["descriptors"] <= before["descriptors"] + 8
    assert after["threads"] <= before["threads"] + 8
    assert after["files"] <= before["files"] + 4
    assert after["memory"] <= before["memory"] + 16384
    assert left_on_disk(torture) == []


@pytest.mark.soak
def test_a_long_life_holds_no_more_than_a_short_one(torture: Any) -> None:
    soak_for(torture, float(os.environ.get("NODEPLUG_SOAK_SECONDS", "20")))


@pytest.mark.soak
def test_a_very_long_life_holds_no_more_than_a_short_one(torture: Any) -> None:
    soak_for(torture, float(os.environ.get("NODEPLUG_SOAK_SECONDS", "1800")))
