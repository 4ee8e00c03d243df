"""Pods that ask for a device come and go while the daemon is killed again and again: how many does kubelet reject?"""

import itertools
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.real.consumers import Lab

RESOURCE = "example.com/widget"
PUBLISHED = Path(__file__).parents[2] / "configs" / "cni" / "10-nodeplug.conflist"
DEVICES = 24
PODS = 4
KILLS = 10
pytestmark = pytest.mark.parametrize("generation", ["current"], indirect=True, scope="session")


@pytest.fixture(scope="module")
def lab(make_kubelet_lab: Callable[..., AbstractContextManager[Lab]], consumer: Callable[[str], Path]) -> Iterator[Lab]:
    with make_kubelet_lab(PUBLISHED, control_plane=consumer("kubernetes")) as made:
        for number in range(2, DEVICES):
            os.mknod(made.folder / "dev" / f"widget{number}", 0o020666, os.makedev(1, 5))
        made.kubelet.wait_for("all devices", lambda: made.resource()["healthy"] == DEVICES)
        yield made


def live(lab: Lab, names: Iterator[int], over: threading.Event) -> Counter[str]:
    """Have one pod after the other until it is over, as a controller does; count how they fared."""
    ends: Counter[str] = Counter()
    cluster = lab.control_plane
    assert cluster is not None
    while not over.is_set():
        name = f"churn{next(names)}"
        lab.put(name, limits={RESOURCE: 1})
        status: dict[str, Any] = {}
        while status.get("phase") not in {"Running", "Failed"}:
            time.sleep(0.05)
            status = cluster.pod(name)["status"]
        ends[f"{status.get('reason')}: {status.get('message')}" if status["phase"] == "Failed" else "ran"] += 1
        cluster.delete(name)
    return ends


def gaps(lab: Lab) -> list[float]:
    """Return for how many seconds kubelet had no list, each time that a stream had ended."""
    found, ended = [], None
    for line in lab.kubelet.log.splitlines():
        stamp = re.match(r"[EIW]\d{4} (\d\d):(\d\d):(\d\d\.\d+)", line)
        if stamp is None:
            continue
        hours, minutes, seconds = stamp.groups()
        at = int(hours) * 3600 + int(minutes) * 60 + float(seconds)
        if "istAndWatch ended unexpectedly" in line:
            ended = at
        elif "State pushed for device plugin" in line and ended is not None:
            found.append(round(at - ended, 2))
            ended = None
    return found


@pytest.mark.soak
def test_few_pods_are_rejected_although_the_daemon_is_killed_again_and_again(lab: Lab) -> None:
    over, names, ends = threading.Event(), itertools.count(), Counter[str]()
    pause = float(os.environ.get("NODEPLUG_CHURN_PAUSE", "0"))  # seconds until somebody starts the daemon again
    with ThreadPoolExecutor(PODS) as pods:
        lives = [pods.submit(live, lab, names, over) for _ in range(PODS)]
        began = time.monotonic()
        try:
            for number in range(KILLS):
                time.sleep(3.0 + 0.1 * number)
                lab.daemon.kill()
                time.sleep(pause)
                lab.daemon.start()
            time.sleep(2)
        finally:
            over.set()
        for one in lives:
            ends += one.result()
    cluster = lab.control_plane
    assert cluster is not None
    lab.kubelet.wait_for("the end of every pod", lambda: not [n for n in cluster.scheduled() if "churn" in n], 180.0)
    sys.stdout.write(f"{sum(ends.values())} pods in {time.monotonic() - began:.0f} s: {dict(ends)}\n")
    sys.stdout.write(f"kubelet had no list for {gaps(lab)} s\n")
    rejected = ends.total() - ends["ran"]
    assert rejected <= PODS * KILLS
