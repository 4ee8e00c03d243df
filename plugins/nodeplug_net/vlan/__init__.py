"""The plugin vlan: an interface of the container in a VLAN of one of the host."""
