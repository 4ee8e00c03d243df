"""What a plugin class is, and for which version of the contract it is written.

Owns: the constructor that the host calls, the attributes that it reads from a class, and the version of the contract.
Refuses: hooks (see `hookspecs`).

An entry point of the group `nodeplug.v1` names a plugin class for version 1. The contract only grows within a version:
what a later release adds has defaults, so that an older class stays valid. A distribution that needs a later release
declares it as its dependency on `nodeplug`.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol, TypedDict

from nodeplug.contract.host import Host

__all__ = ["API", "Example", "PluginClass"]

API: Final = 1
GROUP: Final = f"nodeplug.v{API}"


class Example(TypedDict, total=False):
    """How a plugin can be tried, for `nodeplug verify`, `nodeplug try` and tests. `{scratch}` stands for a folder.

    Attributes:
        config: `[plugins.<name>.config]`.
        cni: a network list, or one network configuration.
        volume_options: options of a FlexVolume.
        secrets: of the FlexVolume's Secret.
        keeps_data: whether a volume's data must survive its last pod.
        extender: what a scheduler extender is asked about: `pod`, a v1 Pod, and `nodes`, names or v1 Nodes by name.
        beside: more `[plugins.*]` tables that run on the same node, such as an IPAM plugin.
    """

    config: Mapping[str, Any]
    cni: Mapping[str, Any]
    volume_options: Mapping[str, str]
    secrets: Mapping[str, bytes]
    keeps_data: bool
    extender: Mapping[str, Any]
    beside: Mapping[str, Any]


class PluginClass(Protocol):
    """A class with `@hookimpl` methods, constructed once for each section that uses it.

    Three optional attributes: `Config`, a pydantic model with which the host validates the section's `config` before it
    constructs (without it every key is an error), `example`, an `Example`, and `isolation`: "thread" asks to run in the
    daemon itself, where the section does not say otherwise; without it a plugin has a process of its own.
    """

    def __call__(self, config: Any, host: Host) -> object:
        """Construct the plugin. Only read the configuration here; `start` begins.

        Args:
            config: an instance of `Config`.
            host: what the daemon offers to this plugin.
        """
