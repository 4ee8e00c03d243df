"""What an admin can see: metrics, health endpoints and recent calls."""
