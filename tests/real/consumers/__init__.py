"""Real callers of node plugins on a private node: containerd through CRI, kubelet, and a control plane."""

from tests.real.consumers.api_server import ApiServer
from tests.real.consumers.containerd import Containerd, write_images
from tests.real.consumers.control_plane import ControlPlane
from tests.real.consumers.cri import Cri
from tests.real.consumers.kubelet_process import KubeletProcess, pod
from tests.real.consumers.lab import Lab, open_lab
from tests.real.consumers.private_node import PrivateNode
from tests.real.consumers.restarts import Restarts

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
