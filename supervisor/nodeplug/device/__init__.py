"""The device-plugin front: kubelet's gRPC in, snapshots and grants out."""
