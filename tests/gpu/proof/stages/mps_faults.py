"""Stage 6: a part of MPS ends, or a tenant attacks what is mounted: what is lost, and what nodeplug says meanwhile.

Owns: that a card which is offered has clients that work.
Refuses: to ask that neighbours survive: MPS decides that, and it is written down.
"""

import time
from typing import Any, Final

from tests.gpu.proof.clients import Client, Unanswered, failure
from tests.gpu.proof.machine import Machine
from tests.gpu.proof.mps import Mps, kill, mps
from tests.gpu.proof.patience import patient, until
from tests.gpu.proof.stage import Disproved, Notes

from nodeplug_gpu.mps.client import PIPES

_NOTICED: Final = 13.0
"""Seconds within which it must be noticed that clients fail: the daemon is asked every 10 s."""
_BACK: Final = 22.0
"""Seconds after which a recovery is no longer waited for."""
_ATTEMPT: Final = 4.0
_FAILED_ENDS: Final = 6.0
"""Seconds after which a neighbour that has failed is ended."""


def run(machine: Machine, notes: Notes) -> None:
    """Break one part after the other, the smallest first."""
    machine.need_mps()
    machine.need_units(20)
    with mps(machine, notes) as one:
        granted = one.node.admit("tenant", 8)
        neighbour = one.node.admit("neighbour", 8)
        _attack(one, notes, granted)
        _break(one, notes, granted, neighbour, "a client with an illegal address", lambda: _illegal(one, granted))
        try:
            _break(one, notes, granted, neighbour, "the server was killed", one.kill_server)
        except Disproved as error:
            notes.lacking(str(error))
        control = one.control
        what = "the control daemon was killed"
        _break(one, notes, granted, neighbour, what, lambda: kill(control, "record of the control daemon"))
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
        if _recovers(one, notes, granted, beside, what, broken):
            notes.seen(f"{what}: the neighbour {_how(beside)}")


def _recovers(one: Mps, notes: Notes, granted: Any, beside: Client, what: str, broken: float) -> bool:
    """Start clients until one works; meanwhile the card must not stay allocatable.

    Returns:
        Whether the neighbour was left alone. One that has failed keeps the server of MPS from serving new clients as
        long as it runs ("Client Termination" and "GPU exception" in NVIDIA's documentation); a real one would end.
    """
    untrue, said, left_alone = 0.0, set(), True
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
        if left_alone and now > patient(_FAILED_ENDS) and (how := _how(beside)) != "goes on":
            notes.seen(f"{what}: the neighbour {how}, and is ended after {now:.0f} s, since no client works")
            beside.kill()
            left_alone = False
        if now > patient(_BACK):
            notes.expect(False, f"{what}: after {now:.0f} s clients still fail: {why}")
            break
        time.sleep(0.2)
    notes.figure(f"{what}: until a client works", now, "s")
    notes.figure(f"{what}: allocatable while clients fail, until", untrue, "s")
    if said:
        notes.seen(f"{what}: nodeplug says: {'; '.join(sorted(said))}")
    notes.expect(
        untrue <= patient(_NOTICED), f"{what}: after {untrue:.0f} s the card was allocatable, and clients failed"
    )
    return left_alone


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
