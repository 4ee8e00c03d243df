"""A call that ends before one of its messages to the kernel, as if the process had been killed: no way back runs.

Other than in `killing`, the process goes on, and so do threads that have no part in the call.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.node.failing import CALLS

from nodeplug_net.netlink.connection import Netlink


class _Killed(BaseException):
    """Not caught by the code that is called."""


def killed_call(call: Callable[[], object], after: int) -> bool:
    """Run a call that ends after so many messages to the kernel.

    Args:
        call: runs in threads of `run_in`.
        after: how many messages.

    Returns:
        Whether it came so far.
    """
    sent, exchange = 0, Netlink.exchange

    def counted(self: Netlink, messages: Any) -> Any:
        nonlocal sent
        if threading.current_thread().name == CALLS:
            if sent == after:
                raise _Killed
            sent += 1
        return exchange(self, messages)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Netlink, "exchange", counted)
        patch.setattr("nodeplug_net.undo.Undo.__exit__", lambda *_: None)
        try:
            call()
        except _Killed:
            return True
    return False
