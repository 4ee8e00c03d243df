"""The CNI family: bridge, loopback, and the IPAM of host-local and static."""
