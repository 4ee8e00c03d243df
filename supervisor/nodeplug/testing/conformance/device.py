"""Rules for device plugins."""
