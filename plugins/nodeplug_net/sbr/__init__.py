"""sbr: which way packets go, by the address that they come from."""
