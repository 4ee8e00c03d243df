"""The version of nodeplug that this process runs.

It is read once: `importlib.metadata` parses METADATA at each call, which takes 8 ms and may block. A daemon goes on to
report its own version when another one has been installed over it.
"""

from functools import cache
from importlib.metadata import version


@cache
def own_version() -> str:
    """Return the version of nodeplug that was installed at the first call.

    Raises:
        importlib.metadata.PackageNotFoundError: nodeplug is imported without being installed.
    """
    return version("nodeplug")
