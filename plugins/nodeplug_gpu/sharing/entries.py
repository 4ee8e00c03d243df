"""How an entry of the configuration shares its cards.

Owns: which way to share is an entry's.
Refuses: the size of a unit, which what is held may keep (the tracker settles it).
"""

from nodeplug_gpu.access import NodePaths
from nodeplug_gpu.config import Memory, Mig, Replicas, Resource
from nodeplug_gpu.sharing import Sharing
from nodeplug_gpu.sharing.exclusive import ExclusiveSharing
from nodeplug_gpu.sharing.memory import MemorySharing
from nodeplug_gpu.sharing.mig import MigInstances
from nodeplug_gpu.sharing.replicas import TimeSlicing


def sharing_of(entry: Resource, paths: NodePaths) -> Sharing:
    """Return the way in which an entry shares its cards, with units of the configured size."""
    match entry:
        case Replicas():
            return TimeSlicing(entry, paths)
        case Mig(strategy="single" | "mixed"):
            return MigInstances(entry, paths)
        case Memory():
            return MemorySharing(entry, paths, entry.unit)
        case _:
            return ExclusiveSharing(entry, paths)
