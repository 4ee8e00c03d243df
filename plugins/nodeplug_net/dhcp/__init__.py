"""The IPAM plugin dhcp: addresses that a DHCP server leases, and the keeper of the leases."""
