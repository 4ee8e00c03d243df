"""The plugin bridge: a veth pair per container, on a bridge of the host."""
