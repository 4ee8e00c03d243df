"""The plugin host-device: an interface of the host that a container has for itself."""
