"""What this node says to the cluster: in the Node object, in events, and in what other programs look for."""
