"""HTTP/1.1 with limits, for probes and any other front that speaks HTTP."""
