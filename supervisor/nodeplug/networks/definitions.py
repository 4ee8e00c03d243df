"""The NetworkAttachmentDefinitions that were known last, on disk: a node that starts without an API server has them.

Owns: one file, replaced as a whole; read once, by whoever asks first.
Refuses: to be right. Once the API server has listed them all, that counts.
"""

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.cluster import NetworkDefinition
from nodeplug.contract.journal import write_durably

LOG: Final = logging.getLogger(__name__)
_VERSION: Final = 1


class Definitions:
    """Those that are known. `find` belongs to any thread; the rest to one at a time.

    Args:
        path: the file; its folder is made when it is written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: Mapping[str, NetworkDefinition] | None = None
        self._reading = threading.Lock()

    def find(self, namespace: str, name: str) -> NetworkDefinition | None:
        """Return one, as far as is known; may read the file."""
        known = self._known
        if known is None:
            with self._reading:
                known = self._known if self._known is not None else self._read()
                if self._known is None:  # nobody has learnt better meanwhile
                    self._known = known
        return known.get(f"{namespace}/{name}")

    def learn(self, found: Mapping[str, NetworkDefinition]) -> None:
        """Know these and no others."""
        self._known = found

    def write(self) -> None:
        """Write what is known.

        Raises:
            PluginError: the disk refuses.
        """
        known = self._known or {}
        found = {
            key: {"config": one.config, "annotations": dict(one.annotations)} for key, one in sorted(known.items())
        }
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(self._path, json.dumps({"version": _VERSION, "definitions": found}).encode())

    def _read(self) -> Mapping[str, NetworkDefinition]:
        try:
            document = json.loads(read_bounded(self._path))
            if document["version"] != _VERSION:
                raise ValueError(document["version"])
            return dict(map(_definition, document["definitions"].items()))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            LOG.warning("the networks that were known last are not: %s: %s", self._path, error)
            return {}


def _definition(item: tuple[str, Any]) -> tuple[str, NetworkDefinition]:
    key, about = item
    namespace, _, name = key.partition("/")
    annotations = {str(one): str(value) for one, value in about["annotations"].items()}
    return key, NetworkDefinition(namespace, name, config=str(about["config"]), annotations=annotations)
