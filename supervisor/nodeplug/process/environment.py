"""A copy of the environment variables, for the processes that the daemon starts."""

import os


def copy_environment() -> dict[str, str]:
    """Return a copy of `os.environ`. It lacks a variable that another thread deletes during the copy.

    Plugins in threads may set and delete variables at any time. `dict(os.environ)` raises KeyError for one that is
    deleted after the names were read.
    """
    return {name: value for name in tuple(os.environ) if (value := os.environ.get(name)) is not None}
