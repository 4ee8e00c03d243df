"""Notes which functions the processes of a test execute.

Copied as the module `nodeplug_seen` into the environment of a copy of the checkout, whose functions call `seen` first.
A line of the log is a suite, a file of tests and the number of a function. It is written at once, by one write(2): most
processes of the tests are killed.
"""

# Bound now, since tests replace functions of os.
from os import O_APPEND, O_CLOEXEC, O_WRONLY, close, environb, fsencode, getpid, write
from os import open as open_

VARIABLE = b"NODEPLUG_TEST"
"""The suite and file of the test that runs, in the environment of what it starts."""
_LOG = fsencode(__file__) + b".log"
_TESTS = fsencode(__file__) + b".tests"
"""A folder: the same in a file for each process that runs tests, for processes with an environment of their own."""
_seen: dict[bytes, set[int]] = {}
_inherited: tuple[int, bytes] = (0, b"")


def seen(number: int) -> None:
    """Note that this process executes a function in a test, the first time that it does so."""
    test = environb.get(VARIABLE) or _of_ancestor()
    before = _seen.setdefault(test, set())
    if number not in before:
        before.add(number)
        try:
            log = open_(_LOG, O_WRONLY | O_APPEND | O_CLOEXEC)
        except OSError:  # in another root, for instance
            return
        write(log, b"%b %d\n" % (test or b"- -", number))
        close(log)


def _of_ancestor() -> bytes:
    """Return what is told by the process of the tests from which this one descends, or nothing."""
    global _inherited  # noqa: PLW0603 - one for the process
    own = process = getpid()
    if _inherited[0] != own:
        test = b""
        while process > 1 and not test:
            test = _read(_TESTS + b"/%d" % process)
            stat = _read(b"/proc/%d/stat" % process).rpartition(b")")[2].split()
            process = int(stat[1]) if stat else 0
        _inherited = (own, test)
    return _inherited[1]


def _read(path: bytes) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib may not be imported yet
            return file.read()
    except OSError:
        return b""
