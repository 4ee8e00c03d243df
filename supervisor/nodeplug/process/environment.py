"""The environment of child processes: a copy of that of this process."""

import os


def copy_environment() -> dict[str, str]:
    """Return a copy of `os.environ`, without the variables that another thread deletes meanwhile.

    Plugins in threads may set and delete variables at any time. `dict(os.environ)` raises KeyError for one that is
    deleted after the names were read.
    """
    return {name: value for name in tuple(os.environ) if (value := os.environ.get(name)) is not None}
