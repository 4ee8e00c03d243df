"""`{scratch}`: the placeholder of a configuration for a folder that only the run knows.

Owns: the word, and its replacement, the same for `nodeplug try`, `nodeplug verify` and the fixtures.
Refuses: to create the folder.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

SCRATCH: Final = "{scratch}"
"""In any text of a configuration: an existing empty folder of the run."""


def filled(value: Any, scratch: Path) -> Any:
    """Return a value of JSON's kinds with the folder's path in every text that holds `{scratch}`."""
    if isinstance(value, str):
        return value.replace(SCRATCH, str(scratch))
    if isinstance(value, Mapping):
        return {key: filled(item, scratch) for key, item in value.items()}
    return [filled(item, scratch) for item in value] if isinstance(value, list | tuple) else value
