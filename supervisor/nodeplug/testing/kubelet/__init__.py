"""A stand-in for kubelet's device manager, for tests of device plugins: real sockets, real gRPC, no node.

    async with Kubelet(tmp_path) as kubelet:
        ...                                   # a plugin registers in kubelet.device_plugins
        await kubelet.until_allocatable("example.com/fuse", 4)
        granted = await kubelet.admit("pod-1", {"example.com/fuse": 1})

It follows kubelet (about release 1.35, or 1.20 with `old_style`) where a plugin can notice: it dials back inside
Register, receives 4 MiB at most, never redials, and allocates with the device manager's steps and messages.
"""

from nodeplug.testing.kubelet.allocation import AdmissionError
from nodeplug.testing.kubelet.blocking import BlockingKubelet
from nodeplug.testing.kubelet.ledger import ContainerKey
from nodeplug.testing.kubelet.stand_in import Kubelet, UnknownResourceError
from nodeplug.testing.kubelet.timeouts import Timeouts

__all__ = ["AdmissionError", "BlockingKubelet", "ContainerKey", "Kubelet", "Timeouts", "UnknownResourceError"]
