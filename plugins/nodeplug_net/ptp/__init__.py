"""The plugin ptp: a veth pair per container, and routes."""
