"""What is executed before a plugin's process, if that may do less than the daemon; with `python -IS`.

    launching.py CONTROL DAEMON CGROUPS USER GROUP CAPABILITIES NICE TASKS PACKAGE PROGRAM ARGUMENT...

Owns: what the process must not have any more, given up before anything of the plugin's environment runs: its
interpreter runs `sitecustomize` and `.pth` files before this package. Each of CGROUPS (files, one a line) to PACKAGE
may be `-`: it stays, or need not be read.
Refuses: packages, this one too: only the standard library, without `site`. What cannot be given up is told on the
control socket, and nothing is executed.

In this order, since each step needs what a later one takes: cgroup, priority and limit, bounding set, groups and user,
capabilities, the promise not to get more (no_new_privs), and the signal at the daemon's end, which a change of user
forgets. execve(2) keeps that signal here: the program gets no privilege by its file.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CAPABILITY_VERSION_3 = 0x20080522
_WHERE = 'install it where other users may read, or write `user = "root"` for a plugin that you trust'
_LIBC = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _prctl(option: int, *arguments: int) -> int:
    values = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    return int(_LIBC.prctl(option, *values))


def _bound(kept: "set[int]") -> None:
    """Take everything else out of the bounding set, so that no program gives it back."""
    number = 0
    while (has := _prctl(_PR_CAPBSET_READ, number)) >= 0:
        if has and number not in kept:
            _check(_prctl(_PR_CAPBSET_DROP, number))
        number += 1


def _keep(kept: "set[int]") -> None:
    """Have these capabilities and no other, in this process and, as ambient ones, in its children."""
    bits = sum(1 << number for number in kept)
    halves = (bits & 0xFFFFFFFF, bits >> 32)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(*(half for half in halves for _ in range(3)))
    _check(_LIBC.capset(ctypes.byref(header), ctypes.byref(data)))
    for number in kept:
        _check(_prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number))


def _become(user: int, group: int) -> None:
    _check(_prctl(_PR_SET_KEEPCAPS, 1))
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def _enter(cgroups: str) -> None:
    """Move into cgroups: here, and not by the daemon, so that nothing of the worker ever runs outside."""
    for file in cgroups.split("\n"):
        try:
            with open(file, "w", encoding="ascii") as entrance:  # noqa: PTH123 - pathlib takes 5 ms to import
                entrance.write("0")
        except OSError as error:
            raise SystemExit(f"it cannot enter its cgroup {file}: {error.strerror}") from None


def _give_up(user: str, group: str, capabilities: str, nice: str, tasks: str) -> None:
    step = "be given its priority"
    try:
        if nice != "-":
            os.setpriority(os.PRIO_PROCESS, 0, int(nice))
        step = "be given its limit of tasks"
        if tasks != "-":
            import resource  # noqa: PLC0415 - few need it

            resource.setrlimit(resource.RLIMIT_NPROC, (int(tasks), int(tasks)))
        kept = {int(number) for number in capabilities.split(",") if number} if capabilities != "-" else None
        step = "give up capabilities"
        if kept is not None:
            _bound(kept)
        step = f"become user {user} and group {group}"
        if user != "-":
            _become(int(user), int(group))
        step = "keep the capabilities of its section"
        if kept is not None:
            _keep(kept)
            _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1))
    except OSError as error:
        raise SystemExit(f"it cannot {step}: {error.strerror}; only root with that right can start it") from None


def _end_with(daemon: int) -> None:
    _check(_prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))
    if os.getppid() != daemon:
        os._exit(0)  # noqa: TID251 - the daemon has gone


def _execute(package: str, program: str, arguments: "list[str]") -> None:
    if package != "-" and not os.access(package, os.R_OK | os.X_OK):
        raise SystemExit(f"its user may not read nodeplug at {package}; {_WHERE}")
    try:
        os.execv(program, arguments)  # noqa: S606 - this is what the module is for
    except OSError as error:
        raise SystemExit(f"its user may not execute {program}: {error.strerror}; {_WHERE}") from None


def _quoted(text: str) -> str:
    """Write a text in JSON: its user may not read the standard library either, so nothing can be imported by now."""
    escaped = "".join(one if one.isascii() and one.isprintable() and one not in '"\\' else _code(one) for one in text)
    return f'"{escaped}"'


def _code(character: str) -> str:
    return f"\\u{min(ord(character), 0xFFFD):04x}"


def main(control: str, daemon: str, *rest: str) -> None:
    """Give up what has to be, and become the worker; tell the daemon why not."""
    cgroups, user, group, capabilities, nice, tasks, package, program, *arguments = rest
    try:
        os.chdir("/")
        if cgroups != "-":
            _enter(cgroups)
        _give_up(user, group, capabilities, nice, tasks)
        _end_with(int(daemon))
        _execute(package, program, [program, *arguments])
    except SystemExit as refusal:
        os.write(int(control), f'{{"op": "refusal", "message": {_quoted(str(refusal))}}}'.encode())
        raise SystemExit(1) from None


if __name__ == "__main__":
    main(*sys.argv[1:])
