"""hostdev: any device nodes of the host, by glob, as extended resources."""

from nodeplug_hostdev.plugin import HostDev

__all__ = ["HostDev"]
