"""A container runtime's side of CNI, for tests and demonstrations: what libcni does, on plugins' real executables.

    runtime = CniRuntime(conflist, [Path("/opt/cni/bin")])
    result = runtime.add("container", "/run/netns/pod")
    runtime.delete("container", "/run/netns/pod")

It does what libcni does where a plugin can notice; a `RuntimeStyle` says what is specific to one runtime.
"""

from nodeplug.testing.cni_runtime.execution import CniError, Execution, Patience
from nodeplug.testing.cni_runtime.runtime import CniRuntime
from nodeplug.testing.cni_runtime.styles import CONTAINERD, CRI_O, LIBCNI, PODMAN, RuntimeStyle

__all__ = ["CONTAINERD", "CRI_O", "LIBCNI", "PODMAN", "CniError", "CniRuntime", "Execution", "Patience", "RuntimeStyle"]
