"""Level, not edge: what plugins made on the host is compared with what they recorded whenever the kernel changes."""
