"""What the node takes from the cluster and tells it: networks as objects. Never needed for serving."""
