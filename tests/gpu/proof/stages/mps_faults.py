"""Stage 6: a part of MPS ends, or a tenant attacks what is mounted: what is lost, and what nodeplug says meanwhile.

Owns: that a card which is offered has clients that work.
Refuses: to ask that neighbours survive: MPS decides that, and it is written down.
"""

import os
import signal
import time
from typing import Any, Final

from tests.gpu.proof.clients import Client, Unanswered, failure
from tests.gpu.proof.machine import Machine
from tests.gpu.proof.mps import Mps, mps
from tests.gpu.proof.stage import Disproved, Notes

from nodeplug.testing.waiting import until
from nodeplug_gpu.mps.client import PIPES

_NOTICED: Final = 13.0
"""Seconds within which it must be noticed that clients fail: the daemon is asked every 10 s."""
_BACK: Final = 22.0
"""Seconds after which a recovery is no longer waited for."""
_ATTEMPT: Final = 4.0


def run(machine: Machine, notes: Notes) -> None:
    """Break one part after the other, the smallest first."""
    machine.need_mps()
    machine.need_units(20)
    with mps(machine) as one:
        granted = one.node.admit("tenant", 8)
        neighbour = one.node.admit("neighbour", 8)
        _attack(one, notes, granted)
        _break(one, notes, granted, neighbour, "a client with an illegal address", lambda: _illegal(one, granted))
        server = one.server
        if server:
            _break(one, notes, granted, neighbour, "the server was killed", lambda: os.kill(one.server, signal.SIGKILL))
        else:
            notes.lacking("no server of MPS was found below its control daemon, so none was killed")
        control = one.control
        if not control:
            raise Disproved("no record of the control daemon was found")
        _break(
            one, notes, granted, neighbour, "the control daemon was killed", lambda: os.kill(control, signal.SIGKILL)
        )
        until(lambda: one.control not in {0, control}, 20, one.node.state)
        notes.seen("the control daemon was started again")


def _attack(one: Mps, notes: Notes, granted: Any) -> None:
    """Have root in a container try to delete, rename and replace the socket, and look at it from the node."""
    with one.client(granted) as tenant:
        tenant.do("start")
        control = next(path for path in one.node.run_dir.rglob("pipe/control"))
        before = control.stat().st_ino
        for what, why in tenant.do("replace", path=f"{PIPES}/control").items():
            notes.expect(why, f"a tenant can {what} {PIPES}/control")
            notes.seen(f"a tenant that tries to {what} the socket: {why or 'succeeds'}")
        notes.expect(
            control.exists() and control.stat().st_ino == before, "the socket of the daemon is another one now"
        )


def _illegal(one: Mps, granted: Any) -> None:
    with one.client(granted) as client:
        client.do("start", patience=15)
        reply = client.ask("fault", kind="address")
        if "error" not in reply:
            raise Disproved("a write to an illegal address was no error")


def _break(one: Mps, notes: Notes, granted: Any, neighbour: Any, what: str, act: Any) -> None:
    with one.client(neighbour) as beside:
        beside.do("start", patience=20)
        beside.do("work", seconds=600.0, blocks=4)
        act()
        broken = time.monotonic()
        _recovers(one, notes, granted, what, broken)
        notes.seen(f"{what}: the neighbour {_how(beside)}")


def _recovers(one: Mps, notes: Notes, granted: Any, what: str, broken: float) -> None:
    """Start clients until one works; meanwhile the card must not stay allocatable."""
    untrue, said = 0.0, set()
    while True:
        before = bool(one.node.card().get("allocatable"))
        why = _why_not(one, granted)
        now = time.monotonic() - broken
        card = one.node.card()
        if not why:
            break
        said |= {card.get("reason") or "nothing"}
        if before and card.get("allocatable"):
            untrue = now
        if now > _BACK:
            notes.expect(False, f"{what}: after {now:.0f} s clients still fail: {why}")
            break
        time.sleep(0.2)
    notes.figure(f"{what}: until a client works", now, "s")
    notes.figure(f"{what}: allocatable while clients fail, until", untrue, "s")
    if said:
        notes.seen(f"{what}: nodeplug says: {'; '.join(sorted(said))}")
    notes.expect(untrue <= _NOTICED, f"{what}: after {untrue:.0f} s the card was allocatable, and clients failed")


def _why_not(one: Mps, granted: Any) -> str:
    """Return why a new client does not work; nothing where it does."""
    with one.client(granted) as client:
        try:
            reply = client.ask("start", patience=_ATTEMPT)
            if "error" not in reply:
                reply = client.ask("compute", patience=_ATTEMPT)
        except Unanswered as error:
            return str(error)
    return failure(reply) if "error" in reply else ""


def _how(beside: Client) -> str:
    """Return how the client beside the fault is."""
    try:
        before = beside.ask("progress", patience=5)
        time.sleep(0.3)
        after = beside.ask("progress", patience=5)
    except Unanswered as error:
        return f"is lost: {error}"
    if after["failed"] is not None:
        return f"fails with error {after['failed']}"
    return "goes on" if after["launches"] > before["launches"] else "is alive, and stands still"
