"""Kubelet's side of CSI (pkg/volume/csi and the plugin watcher), for tests of drivers: their real sockets, real mounts.

    caller = CsiCaller(kubelet_root, "loopfile.nodeplug")
    folder = caller.mount(Pod(uid="1"), CsiVolume("pv-1", {"name": "data"}, handle="data"))
    caller.unmount(Pod(uid="1"), "pv-1")

A volume without a handle is an inline one. `CsiDriverSpec` is what the cluster's CSIDriver object says of the driver.
"""

from nodeplug.testing.csi_caller.caller import CsiCaller
from nodeplug.testing.csi_caller.calls import CsiFailure, CsiTimeouts
from nodeplug.testing.csi_caller.volumes import CsiDriverSpec, CsiVolume

__all__ = ["CsiCaller", "CsiDriverSpec", "CsiFailure", "CsiTimeouts", "CsiVolume"]
