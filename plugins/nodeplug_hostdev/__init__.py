"""Any device node of the host as an extended resource."""
