"""The plugin portmap: ports of the host that lead to a container."""
