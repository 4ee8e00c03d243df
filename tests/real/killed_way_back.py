"""`nodeplug net to-reference` that is killed before a step: `python -m tests.real.killed_way_back STEP NETNS WORDS...`.

A step is what changes anything: a transaction or a change of a link in the kernel, a program that is told what to do,
a file. Before what only looks it may be killed, too; what it leaves then is what it leaves before its next step.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.node.killing import die_before

from nodeplug import Netns
from nodeplug_net.command import app
from nodeplug_net.netlink.connection import KernelReply, Netlink

exchange, run = Netlink.exchange, subprocess.run
_BATCH = 0x10
"""NFNL_MSG_BATCH_BEGIN; rtnetlink's types are four to a kind, the third of which asks."""


class Change:
    """What is counted of calls that may be none."""

    @staticmethod
    def begin() -> None:
        """Be a step."""


def sent(self: Netlink, messages: Sequence[tuple[bytearray, bool]]) -> list[KernelReply]:
    kinds = [int.from_bytes(data[4:6], "little") for data, _ in messages]
    if any(kind == _BATCH or (kind < 1 << 8 and kind % 4 != 2) for kind in kinds):
        Change.begin()
    return exchange(self, messages)


def executed(*arguments: Any, **keys: Any) -> Any:
    if keys.get("input"):
        Change.begin()
    return run(*arguments, **keys)


def main(step: int, here: Netns, words: Sequence[str]) -> None:
    here.enter()
    Netlink.exchange = sent  # type: ignore[method-assign]
    subprocess.run = executed
    die_before(step, lambda: app(words, standalone_mode=False), steps=((Change, "begin"), (Path, "unlink")))


if __name__ == "__main__":
    main(int(sys.argv[1]), Netns.open(sys.argv[2]), sys.argv[3:])
