"""For plugin authors and our own tests: stand-ins for the callers of plugins, on real sockets and processes."""

from nodeplug.testing.cni_runtime import (
    CONTAINERD,
    CRI_O,
    LIBCNI,
    PODMAN,
    CniError,
    CniRuntime,
    Execution,
    Patience,
    RuntimeStyle,
)
from nodeplug.testing.conformance import Finding, Report, conformance
from nodeplug.testing.csi_caller import CsiCaller, CsiDriverSpec, CsiFailure, CsiTimeouts, CsiVolume
from nodeplug.testing.devices import DeviceHost, serve_devices
from nodeplug.testing.dra import DraCluster
from nodeplug.testing.exec_road import Ended, ExecRoad
from nodeplug.testing.flex_caller import (
    Backoff,
    FlexCaller,
    FlexFailure,
    FlexNotSupported,
    FlexProber,
    FlexVolume,
)
from nodeplug.testing.inventory import Inventory, leaves_nothing
from nodeplug.testing.kubelet import AdmissionError, BlockingKubelet, Kubelet, Timeouts, UnknownResourceError
from nodeplug.testing.plugin_host import Delegated, RecordingHost, host
from nodeplug.testing.pods import CniRuntimeFactory, CsiCallerFactory, FlexCallerFactory, SchedulerFactory
from nodeplug.testing.sandbox import Sandbox
from nodeplug.testing.scheduler import ExtenderFailure, Filtered, Scheduler, Unschedulable
from nodeplug.testing.scratch_node import ScratchNode

__all__ = [
    "CONTAINERD",
    "CRI_O",
    "LIBCNI",
    "PODMAN",
    "AdmissionError",
    "Backoff",
    "BlockingKubelet",
    "CniError",
    "CniRuntime",
    "CniRuntimeFactory",
    "CsiCaller",
    "CsiCallerFactory",
    "CsiDriverSpec",
    "CsiFailure",
    "CsiTimeouts",
    "CsiVolume",
    "Delegated",
    "DeviceHost",
    "DraCluster",
    "Ended",
    "ExecRoad",
    "Execution",
    "ExtenderFailure",
    "Filtered",
    "Finding",
    "FlexCaller",
    "FlexCallerFactory",
    "FlexFailure",
    "FlexNotSupported",
    "FlexProber",
    "FlexVolume",
    "Inventory",
    "Kubelet",
    "Patience",
    "RecordingHost",
    "Report",
    "RuntimeStyle",
    "Sandbox",
    "Scheduler",
    "SchedulerFactory",
    "ScratchNode",
    "Timeouts",
    "UnknownResourceError",
    "Unschedulable",
    "conformance",
    "host",
    "leaves_nothing",
    "serve_devices",
]
