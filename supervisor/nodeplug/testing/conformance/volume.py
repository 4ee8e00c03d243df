"""Rules for volume drivers."""
