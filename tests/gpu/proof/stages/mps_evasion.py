"""Stage 5: what a tenant can do to have other limits than its units. It cannot fail: what is seen is written down.

Owns: clients that change their environment, that are of another user, or that are two in one container.
Refuses: to judge: docs/gpu-limits.md says what limits are worth, and this says whether that is so.
"""

from collections.abc import Mapping
from typing import Any, Final

from tests.gpu.proof.clients import Unanswered, failure
from tests.gpu.proof.machine import GIB, Machine
from tests.gpu.proof.mps import STEP, Mps, limit_of, mps
from tests.gpu.proof.stage import Notes

ONLY_RECORDS: Final = True
_UNITS: Final = 8
_MEMORY, _THREADS = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_BEYOND: Final = 2 * GIB
"""Bytes by which a client tries to exceed its limit."""
_OTHER_USER: Final = 1000
_ATTEMPTS: Final[Mapping[str, Mapping[str, str | None]]] = {
    "as granted": {},
    "variables unset": {_MEMORY: None, _THREADS: None},
    "variables raised": {_MEMORY: f"0={2 * _UNITS * 1024}M", _THREADS: "100"},
}


def run(machine: Machine, notes: Notes) -> None:
    """Try each way, and write down how far it leads."""
    machine.need_mps()
    machine.need_units(2 * _UNITS + 4)
    with mps(machine, notes) as one:
        granted = one.node.admit("tenant", _UNITS)
        limit = limit_of(granted)
        notes.figure("limit", limit, "bytes")
        for name, env in _ATTEMPTS.items():
            _attempt(one, notes, granted, name, env, limit)
        _two(one, notes, granted, limit)
        _users(one, notes, granted)


def _attempt(one: Mps, notes: Notes, granted: Any, name: str, env: Mapping[str, str | None], limit: int) -> None:
    with one.client(granted, env) as client:
        try:
            seen = client.ask("start", patience=15)
            if "error" in seen:
                notes.seen(f"{name}: {failure(seen)}")
                return
            reply = client.ask("fill", step=STEP, most=limit + _BEYOND)
        except Unanswered as error:
            notes.seen(f"{name}: {error}")
            return
    beyond = reply["held"] > limit
    notes.figure(f"{name}: allocated", reply["held"], "bytes")
    notes.figure(f"{name}: multiprocessors", seen["multiprocessors"])
    notes.seen(f"{name}: {'more than' if beyond else 'no more than'} its limit")


def _two(one: Mps, notes: Notes, granted: Any, limit: int) -> None:
    """Have two processes of one container allocate all that each can."""
    with one.client(granted) as first, one.client(granted) as second:
        try:
            held = 0
            for client in (first, second):
                client.do("start")
                held += client.ask("fill", step=STEP, most=limit)["held"]
        except Unanswered as error:
            notes.seen(f"two processes of one container: {error}")
            return
    notes.figure("two processes of one container: allocated together", held, "bytes")
    notes.seen(f"two processes of one container have {held / limit:.2f} times its limit")


def _users(one: Mps, notes: Notes, granted: Any) -> None:
    """Have a client of another user come while one of root's is served, and wait for root's to end."""
    with one.client(granted, user=_OTHER_USER) as other:
        with one.client(granted) as of_root:
            of_root.do("start")
            try:
                other.tell("start")
                reply = other.hear("start", patience=8)
            except Unanswered as error:
                reply = {}
                notes.seen(f"user {_OTHER_USER} beside root's client: {error}")
        if reply:
            notes.seen(
                f"user {_OTHER_USER} beside root's client: {failure(reply) if 'error' in reply else 'is served'}"
            )
            return
        try:
            reply = other.hear("start", patience=12)
        except Unanswered as error:
            notes.seen(f"user {_OTHER_USER} after root's client has ended: {error}")
            return
        notes.seen(f"user {_OTHER_USER} after root's client: {failure(reply) if 'error' in reply else 'is served'}")
