"""Dynamic Resource Allocation without a cluster: an API server, a scheduler and a kubelet, for tests of drivers."""

from nodeplug.testing.dra.resource_api import Refused, ResourceApi

__all__ = ["Refused", "ResourceApi"]
