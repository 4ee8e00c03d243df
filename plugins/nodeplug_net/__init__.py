"""The CNI family: bridge, loopback and host-local."""
