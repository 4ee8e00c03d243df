"""How the runtimes, all of which call CNI plugins through libcni, differ.

Owns: one value per runtime, from what each was seen to send: containerd 1.6 and 2.3, CRI-O 1.37, podman 4.3.
Refuses: what a plugin cannot see.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_CAPITALISED: Final = frozenset({"portMappings", "bandwidth", "ipRanges", "dns"})


@dataclass(frozen=True, slots=True)
class RuntimeStyle:
    """The habits of one runtime.

    Attributes:
        name: of the runtime.
        capitals: keys inside capability arguments begin with a capital (`HostPort`): Go structs without JSON names.
        second_del: a second DEL follows, without namespace and without result.
        check_after_add: CHECK follows each ADD.
        version_first: VERSION of each plugin comes before ADD.
        null_for_nothing: GC sends `null` when no attachment is valid: a nil slice in Go.
        env: what plugins inherit of the runtime's environment.
    """

    name: str
    capitals: bool = False
    second_del: bool = False
    check_after_add: bool = False
    version_first: bool = False
    null_for_nothing: bool = False
    env: Mapping[str, str] = field(default_factory=dict)

    def spell(self, capability_args: Mapping[str, Any]) -> dict[str, Any]:
        """Spell capability arguments as the runtime does."""
        if not self.capitals:
            return dict(capability_args)
        return {name: _capitalise(value) if name in _CAPITALISED else value for name, value in capability_args.items()}


def _capitalise(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key[:1].upper() + key[1:]: _capitalise(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_capitalise(item) for item in value]
    return value


LIBCNI: Final = RuntimeStyle("libcni")
"""The library alone, as `cnitool` uses it."""
CONTAINERD: Final = RuntimeStyle(
    "containerd", capitals=True, second_del=True, env={"LD_LIBRARY_PATH": "/opt/containerd/lib"}
)
CRI_O: Final = RuntimeStyle("cri-o", check_after_add=True, null_for_nothing=True)
PODMAN: Final = RuntimeStyle("podman", version_first=True)
