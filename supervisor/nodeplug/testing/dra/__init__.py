"""Dynamic Resource Allocation without a cluster: an API server, a scheduler and a kubelet, for tests of drivers."""

from nodeplug.testing.dra.resource_api import Refused, ResourceApi
from nodeplug.testing.dra.scheduler import Pending, Scheduler

__all__ = ["Pending", "Refused", "ResourceApi", "Scheduler"]
