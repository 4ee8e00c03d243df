"""Holds up the import of the daemon for as long as a test wants: Python imports this at its start."""

import os
import sys
import time
from pathlib import Path
from types import ModuleType


class Held:
    """Waits while the file that `HELD` names is there, and says that it has been reached."""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
        """Leave the module to others, later."""
        del path, target
        held = Path(os.environ.get("HELD", "/nonexistent"))
        if name == "nodeplug.daemon" and held.exists():
            held.with_name("reached").touch()
            while held.exists():
                time.sleep(0.01)


sys.meta_path.insert(0, Held())
