"""A provisioner: volumes for claims of the cluster, made, grown and deleted by the drivers of this node."""
