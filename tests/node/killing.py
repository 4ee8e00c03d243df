"""A call that is killed before each of its steps: the process that kills itself, and the loop that starts it.

A step is what changes something outside of the process: a message to the kernel, a rename, what a plugin adds; and the
end. Before a step that only looks it is as it is before the next one, so those are left out.
"""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nodeplug import CniAdd, CniDel, CniGc, CniResult, Netns, ValidAttachment
from nodeplug.testing import forked
from nodeplug_net.netlink.connection import Netlink

Step = tuple[Any, str]
"""What has a function that is a step, and the function's name."""
STEPS: Sequence[Step] = ((Path, "mkdir"), (Path, "rename"), (os, "unlink"), (os, "fsync"))
_ROOT = Path(__file__).parents[2]
_MOST = 200
_BATCH = 0x10
"""NFNL_MSG_BATCH_BEGIN, without which nf_tables only answers; or RTM_NEWLINK."""
_CONNTRACK = 0x01
_DELETE = 2


def die_before(number: int, work: Callable[[], object], *more: Step) -> None:
    """Do some work, and be killed before a step of it; without so many steps, and for step 0, end with status 0."""
    left, exchange = number, Netlink.exchange

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keys: Any) -> Any:
            step()
            return function(*arguments, **keys)

        return call

    def counted_exchange(self: Netlink, messages: Sequence[tuple[bytearray, bool]]) -> Any:
        if any(_changes(data) for data, _ in messages):
            step()
        return exchange(self, messages)

    Netlink.exchange = counted_exchange  # type: ignore[method-assign]
    for owner, name in (*STEPS, *more):
        setattr(owner, name, counted(getattr(owner, name)))
    work()
    step()
    os._exit(0)


def _changes(message: bytearray) -> bool:
    """Whether the kernel does more than answer: types of rtnetlink are four to a kind, the third of which asks."""
    kind = int.from_bytes(message[4:6], "little")
    subsystem, number = kind >> 8, kind & 0xFF
    if subsystem:
        return (subsystem, number) == (_CONNTRACK, _DELETE)
    return kind == _BATCH or kind % 4 != 2


def die_in_call(
    step: int,
    plugin: Any,
    verb: str,
    config: Mapping[str, Any],
    result: CniResult,
    host_netns: Netns,
    netns: Netns | None,
    *more: Step,
    ifname: str = "eth0",
) -> None:
    """Serve an `add` or `del` of container c1 behind another plugin, or a `gc` of all but c9; die before a step."""
    common: dict[str, Any] = {"claim": "x", "network": "net", "version": "1.1.0", "config": config}
    common |= {"host_netns": host_netns}
    own: dict[str, Any] = {"container_id": "c1", "ifname": ifname, "prev_result": result, "netns": netns}
    valid = (ValidAttachment(container_id="c9", ifname=ifname),)
    calls: Mapping[str, Callable[[], object]] = {
        "add": lambda: plugin.cni_add(CniAdd(**own, **common)),
        "del": lambda: plugin.cni_del(CniDel(**own, **common)),
        "gc": lambda: plugin.cni_gc(CniGc(valid=valid, **common)),
    }
    die_before(step, calls[verb], *more)


Words = Sequence[str] | Callable[[], Sequence[str]]


def every_step(module: str, words: Words, *, least: int, prepare: Callable[[], object] = lambda: None) -> Iterator[int]:
    """Run `python -m MODULE STEP WORDS...` for one step after the other until it has no such step.

    Each is forked from a process that has imported what it needs: starting Python would take longer than the call.

    Args:
        module: calls `die_before`.
        words: its further arguments, or what returns those of the next run.
        least: how many steps it has at least.
        prepare: is called before each run.
    """
    for step in range(1, _MOST):
        prepare()
        status, said = run(module, str(step), *(words() if callable(words) else words))
        if status == 0:
            assert step > least
            return
        assert status == -signal.SIGKILL, said
        yield step
    raise AssertionError(f"it has more than {_MOST} steps")


def run(module: str, *words: str) -> tuple[int, str]:
    """Run such a module; return its status and what it said."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*forked.search_path(), str(_ROOT)])}
    with tempfile.NamedTemporaryFile(mode="r") as said:
        path = Path(said.name)
        status = forked.start(module, words, env, stdout=path, stderr=path, repeated=True).wait()
        return status, said.read()
