"""HTTP/1.1 with bounds, for probes and for every further front that speaks HTTP."""
