"""Real callers of node plugins on a private node: containerd through CRI."""

from nodeplug.testing.consumers.containerd import Containerd, write_images
from nodeplug.testing.consumers.cri import Cri
from nodeplug.testing.consumers.private_node import PrivateNode

__all__ = ["Containerd", "Cri", "PrivateNode", "write_images"]
