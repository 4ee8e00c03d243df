"""The NetworkAttachmentDefinitions that were known last, on disk: a node that starts without an API server has them.

Owns: one file, replaced as a whole; read once, by whoever asks first.
Refuses: to be right. Once the API server has listed them all, that counts. And to have them twice: there may be ten
thousand, and what is followed is looked into as it is.
"""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.cluster import NetworkDefinition
from nodeplug.contract.journal import write_durably
from nodeplug.kubeapi.resources import Object
from nodeplug.networks.objects import definition_of

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
        self._followed: Callable[[], Mapping[str, Object]] | None = None
        self._reading = threading.Lock()

    def find(self, namespace: str, name: str) -> NetworkDefinition | None:
        """Return one, as far as is known; may read the file, until all have been listed."""
        followed = self._followed
        if followed is not None:
            found = followed().get(f"{namespace}/{name}")
            return None if found is None else definition_of(found)
        known = self._known
        if known is None:
            with self._reading:
                known = self._known if self._known is not None else self._read()
                if self._known is None:  # nobody has learnt better meanwhile
                    self._known = known
        return known.get(f"{namespace}/{name}")

    def follow(self, followed: Callable[[], Mapping[str, Object]]) -> None:
        """Know from now on what this returns, by `namespace/name`, and nothing else."""
        self._followed, self._known = followed, {}

    def write(self, followed: Mapping[str, Object]) -> None:
        """Write what is known.

        Args:
            followed: what `follow` returned; nobody changes it meanwhile.

        Raises:
            PluginError: the disk refuses.
        """
        # Piece by piece: one long document would hold the interpreter, and everybody in it, as long as it takes.
        pieces = [_entry(key, definition_of(one)) for key, one in sorted(followed.items())]
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(self._path, f'{{"version": {_VERSION}, "definitions": {{{", ".join(pieces)}}}}}'.encode())

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


def _entry(key: str, one: NetworkDefinition) -> str:
    return f"{json.dumps(key)}: {json.dumps({'config': one.config, 'annotations': dict(one.annotations)})}"


def _definition(item: tuple[str, Any]) -> tuple[str, NetworkDefinition]:
    key, about = item
    namespace, _, name = key.partition("/")
    annotations = {str(one): str(value) for one, value in about["annotations"].items()}
    return key, NetworkDefinition(namespace, name, config=str(about["config"]), annotations=annotations)
