"""The plugin ipvlan: an interface of the container with the hardware address of one of the host."""
