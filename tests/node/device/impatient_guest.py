"""The things of a daemon that believes a record for one second instead of ten: the plugin runs in its process."""

from importlib import import_module

from nodeplug.device import resource

vars(resource)["UNCONFIRMED"] = 1.0
Things = import_module("thing_guest").Things  # beside this file, which is no package for a daemon
