"""What is examined: a plugin, its configuration, and what callers would ask of it.

Owns: finding the class again in other processes, and the plugin's own example.
Refuses: to run anything of the plugin but the import of its module.
"""

import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.errors import PluginError
from nodeplug.contract.plugin_class import Example
from nodeplug.loading.discovery import find
from nodeplug.testing.forked import search_path
from nodeplug.testing.place_holder import filled


@dataclass(frozen=True, slots=True)
class Subject:
    """A plugin and how to exercise it.

    Attributes:
        uses: an entry-point name or `module:Class` that every process can load.
        python_path: folders that must be importable for that.
        config: `[plugins.<name>.config]`.
        cni: a network list, or one network configuration; None: nothing but the claim as `type`.
        options: options of a FlexVolume.
        secrets: of the FlexVolume's Secret.
        keeps_data: whether data of a volume must be there after its last pod has gone; None: not stated.
        beside: more `[plugins.*]` tables that run on the same node, such as an IPAM plugin.
        extender: the pod and the nodes that an extender is asked about.
    """

    uses: str
    python_path: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    cni: Mapping[str, Any] | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, bytes] = field(default_factory=dict)
    keeps_data: bool | None = None
    beside: Mapping[str, Any] = field(default_factory=dict)
    extender: Mapping[str, Any] = field(default_factory=dict)

    def within(self, scratch: Path) -> "Subject":
        """Return the same with the scratch folder's path in every place that holds `{scratch}`."""
        return Subject(
            self.uses,
            self.python_path,
            _plain(filled(self.config, scratch)),
            filled(self.cni, scratch),
            filled(self.options, scratch),
            self.secrets,
            self.keeps_data,
            _plain(filled(self.beside, scratch)),
            self.extender,
        )


_ASKED: Final = tuple(Example.__annotations__)


def describe(plugin: type[Any] | str, given: Mapping[str, Any]) -> Subject:
    """Describe what is to be examined.

    Args:
        plugin: a class at the top level of a module, an entry-point name, or `module:Class`.
        given: the arguments of `conformance` that are not None; the rest is taken from the class's own attribute
            `example`, a mapping with the same keys.

    Raises:
        PluginError: no other process could import the class, or its example has an unknown key.
    """
    uses, paths = (plugin, search_path()) if isinstance(plugin, str) else _where(plugin)
    cls = plugin if not isinstance(plugin, str) else find(plugin).cls
    example = getattr(cls, "example", None) or {}
    unknown = sorted(set(example) - set(_ASKED))
    if unknown:
        raise PluginError(f"the example of {uses} has the key {unknown[0]!r}; known: {', '.join(_ASKED)}")
    asked = {**example, **{key: value for key, value in given.items() if value is not None}}
    return Subject(
        uses,
        paths,
        asked.get("config", {}),
        asked.get("cni"),
        asked.get("volume_options", {}),
        asked.get("secrets", {}),
        asked.get("keeps_data"),
        asked.get("beside", {}),
        asked.get("extender", {}),
    )


def _where(cls: type[Any]) -> tuple[str, tuple[str, ...]]:
    """Return `module:Class` and the import path with which a new process finds the same file."""
    if "<locals>" in cls.__qualname__:
        raise PluginError(f"{cls.__qualname__} is defined in a function; put the class at the top level of a module")
    file = Path(inspect.getfile(cls)).resolve()
    if _search(cls.__module__) == file:
        return f"{cls.__module__}:{cls.__qualname__}", search_path()
    # Run as a script, or imported by pytest under a name of its own: its file is importable from its folder.
    return f"{file.stem}:{cls.__qualname__}", (str(file.parent), *search_path())


def _search(module: str) -> Path | None:
    """Return the file that a new process would import under this name; `sys.modules` may know another one."""
    places: Sequence[str] | None = None
    spec = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        found = (finder.find_spec(name, places) for finder in sys.meta_path)
        spec = next((one for one in found if one is not None), None)
        if spec is None:
            return None
        places = spec.submodule_search_locations
    return Path(spec.origin).resolve() if spec is not None and spec.origin else None


def _plain(value: Any) -> Any:
    """Return the same in JSON's types alone, which TOML has, too."""
    return json.loads(json.dumps(value, default=str))
