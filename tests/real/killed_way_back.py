"""`nodeplug net to-reference` that is killed before a step: `python -m tests.real.killed_way_back STEP NETNS WORDS...`.

A program that is told what to do is a step, too.
"""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tests.node.killing import die_before

from nodeplug import Netns
from nodeplug_net.command import app

run = subprocess.run


class Telling:
    """What is counted of programs, of which those without input only look."""

    @staticmethod
    def begin() -> None:
        """Be a step."""


def executed(*arguments: Any, **keys: Any) -> Any:
    if keys.get("input"):
        Telling.begin()
    return run(*arguments, **keys)


def main(step: int, here: Netns, words: Sequence[str]) -> None:
    here.enter()
    subprocess.run = executed
    die_before(step, lambda: app(words, standalone_mode=False), (Telling, "begin"))


if __name__ == "__main__":
    main(int(sys.argv[1]), Netns.open(sys.argv[2]), sys.argv[3:])
