"""Kubelet's side of FlexVolume (pkg/volume/flexvolume), for tests of drivers: their real executables, real mounts.

    caller = FlexCaller(plugin_dir, kubelet_root, "example.com/scratch")
    folder = caller.mount(Pod(uid="1"), FlexVolume("data", {"name": "shared"}))
    caller.unmount(Pod(uid="1"), "data")

`FlexProber` is how kubelet finds drivers, `Backoff` how it repeats what failed.
"""

from nodeplug.testing.flex_caller.answers import FlexFailure, FlexNotSupported
from nodeplug.testing.flex_caller.caller import FlexCaller, FlexVolume
from nodeplug.testing.flex_caller.defaults import Backoff
from nodeplug.testing.flex_caller.prober import FlexProber

__all__ = ["Backoff", "FlexCaller", "FlexFailure", "FlexNotSupported", "FlexProber", "FlexVolume"]
