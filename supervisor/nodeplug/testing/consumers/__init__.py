"""Real callers of node plugins on a private node: containerd through CRI, and kubelet."""

from nodeplug.testing.consumers.containerd import Containerd, write_images
from nodeplug.testing.consumers.cri import Cri
from nodeplug.testing.consumers.kubelet_process import KubeletProcess, pod
from nodeplug.testing.consumers.private_node import PrivateNode

__all__ = ["Containerd", "Cri", "KubeletProcess", "PrivateNode", "pod", "write_images"]
