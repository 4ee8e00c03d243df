"""The CNI family: bridge, loopback, portmap, and the IPAM of host-local and static."""
