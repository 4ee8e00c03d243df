"""Plugins in processes of their own: the wire, and both of its ends.

Owns: how a worker is started, spoken to and ended, what runs in it, and how values cross.
Refuses: when a plugin is loaded, called or replaced (`nodeplug.hosting`). A worker imports neither asyncio nor grpc.
"""
