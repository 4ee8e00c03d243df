"""The end of a process that was asked to end and does not.

Owns: an alarm (alarm(2)) that begins with SIGTERM or SIGINT and ends the process if that has not ended before.
Refuses: an orderly end; that is the event loop's, which has no turn while a thread keeps it or no memory is left.
"""

import signal
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def end_by_alarm(seconds: int) -> None:
    """End the process by SIGALRM so many seconds after it was asked to end.

    Call it in the main thread, after the event loop has its own handlers: these go on.
    """

    def asked(*_: object) -> None:
        signal.alarm(seconds)

    for number in SIGNALS:
        signal.signal(number, asked)  # with siginterrupt(3), unlike the loop's: a thread that waits has its turn, too
