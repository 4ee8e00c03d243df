"""vrf: an interface of a container in a routing domain of its own."""
