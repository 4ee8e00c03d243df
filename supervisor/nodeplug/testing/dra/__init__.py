"""Dynamic Resource Allocation without a cluster: an API server, a scheduler and a kubelet, for tests of drivers.

    with ResourceApi("node-1") as api, DraKubelet(root, api, [root / "cdi"]) as kubelet:
        scheduler = Scheduler(api)
        ...                                   # a driver publishes slices, and registers in kubelet.plugins_registry
        scheduler.place("pod-1", ["claim-1"])
        edits = kubelet.admit("pod-1", ["claim-1"])["main"]

They follow Kubernetes 1.36 where a driver can notice, as docs/runtime-stand-ins.md lists.
"""

from nodeplug.testing.dra.cdi import CdiSpecs, Edits, UnresolvableDevices
from nodeplug.testing.dra.cluster import DraCluster
from nodeplug.testing.dra.kubelet import DraKubelet, PrepareFailed, UnprepareFailed
from nodeplug.testing.dra.resource_api import Refused, ResourceApi
from nodeplug.testing.dra.scheduler import Pending, Scheduler
from nodeplug.testing.dra.timeouts import DraTimeouts

__all__ = [
    "CdiSpecs",
    "DraCluster",
    "DraKubelet",
    "DraTimeouts",
    "Edits",
    "Pending",
    "PrepareFailed",
    "Refused",
    "ResourceApi",
    "Scheduler",
    "UnprepareFailed",
    "UnresolvableDevices",
]
