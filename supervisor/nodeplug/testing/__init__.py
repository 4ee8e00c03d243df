"""For plugin authors and our own tests: the callers of node plugins, acted out on real sockets and processes."""

from nodeplug.testing.scratch_node import ScratchNode

__all__ = ["ScratchNode"]
