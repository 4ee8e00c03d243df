"""What a section's own Python executes first, from its standard input: `PYTHON - CONTROL VERSION DAEMON OLDEST`.

Owns: what no nodeplug of that environment could tell, as there may be none: that this Python is too old, and that
nodeplug is not installed for it, may not be read or cannot be imported. It tells that on the control socket.
Refuses: syntax newer than Python 3.6, so that an old one can say that it is old; and a path of its own, which the
plugin's user might not be able to read: the daemon has opened this file.
"""

import json
import os
import sys

_SAME = "install the release of the daemon there, as pip does: {} -m pip install nodeplug".format(sys.executable)


def _refuse(control: int, text: str) -> None:
    os.write(control, json.dumps({"op": "refusal", "message": text}).encode())
    raise SystemExit(1)


def _closed() -> str:
    """Return what of this environment its user may not read, or nothing."""
    home = os.path.dirname(os.path.dirname(sys.executable))
    library = os.path.join(home, "lib", "python{}.{}".format(*sys.version_info[:2]))
    for place in [library, os.path.join(library, "site-packages"), *sys.path]:  # `site` leaves out what it cannot read
        try:
            os.stat(place)
        except PermissionError:
            return place
        except OSError:
            continue
        if not os.access(place, os.R_OK):
            return place
    return ""


def _enter(control: str, version: str, daemon: str, oldest: str) -> None:
    here = f"its Python, {sys.executable},"
    if sys.version_info[:2] < tuple(map(int, oldest.split("."))):
        _refuse(int(control), "{} has version {}.{}; nodeplug needs {}".format(here, *sys.version_info[:2], oldest))
    try:
        from nodeplug.worker.inside import main  # noqa: PLC0415 - it may not be there
    except BaseException as error:
        missing = error.name or "" if isinstance(error, ImportError) else ""
        closed = _closed()
        if closed:
            _refuse(int(control), f"its user may not read {closed}; install it where other users may read")
        if missing == "nodeplug":
            _refuse(int(control), f"{here} has no nodeplug; {_SAME}")
        if missing.startswith("nodeplug."):
            _refuse(int(control), f"{here} has an older nodeplug, without {missing}; {_SAME}")
        _refuse(int(control), f"{here} cannot import nodeplug: {type(error).__name__}: {error}")
    raise SystemExit(main([control, version, daemon]))


if __name__ == "__main__":
    # The program has been read; what looks for input finds none. The working folder is no place for packages.
    _nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(_nothing, 0)
    os.close(_nothing)
    if sys.path[:1] == [""]:
        del sys.path[0]
    os.chdir("/")
    _enter(*sys.argv[1:])
