"""Addresses: host-local and static, the folder of reservations, and delegation to whoever else gives them."""
