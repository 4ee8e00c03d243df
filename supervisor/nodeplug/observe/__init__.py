"""What an admin can see: metrics, health endpoints, the recent calls."""
