"""Which release of nodeplug this process runs.

Owns: reading its version, once.
Refuses: the versions of other distributions (`loading/discovery.py`).

`importlib.metadata` reads and parses all of METADATA for each answer, the README included: 8 ms, and a file in between.
Another release may be installed over a running daemon, which still is what it was.
"""

from functools import cache
from importlib.metadata import version


@cache
def own_version() -> str:
    """Return the version as of the first question.

    Raises:
        importlib.metadata.PackageNotFoundError: nodeplug is imported without being installed.
    """
    return version("nodeplug")
