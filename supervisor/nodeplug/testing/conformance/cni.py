"""Rules for CNI plugins."""
