"""Real callers of node plugins on a private node: containerd through CRI, kubelet, and a control plane."""

from nodeplug.testing.consumers.api_server import ApiServer
from nodeplug.testing.consumers.containerd import Containerd, write_images
from nodeplug.testing.consumers.control_plane import ControlPlane
from nodeplug.testing.consumers.cri import Cri
from nodeplug.testing.consumers.kubelet_process import KubeletProcess, pod
from nodeplug.testing.consumers.lab import Lab, open_lab
from nodeplug.testing.consumers.private_node import PrivateNode
from nodeplug.testing.consumers.restarts import Restarts

__all__ = [
    "ApiServer",
    "Containerd",
    "ControlPlane",
    "Cri",
    "KubeletProcess",
    "Lab",
    "PrivateNode",
    "Restarts",
    "open_lab",
    "pod",
    "write_images",
]
