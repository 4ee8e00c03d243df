"""The environment variables of this process, for those that it starts."""

import os


def copy_environment() -> dict[str, str]:
    """Return the variables with their values.

    A plugin in a thread may set and delete some at any time. `dict(os.environ)` raises KeyError for one that is deleted
    after the names were read; here it is left out.
    """
    return {name: value for name in tuple(os.environ) if (value := os.environ.get(name)) is not None}
