"""The plugin macvlan: an interface of the container on top of one of the host."""
