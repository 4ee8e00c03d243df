"""bandwidth: the rates of a container's traffic."""
