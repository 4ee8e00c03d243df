"""The reference's firewall: packets to and from containers that a policy of the host would drop, and isolation."""
