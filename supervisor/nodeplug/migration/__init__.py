"""From FlexVolume to CSI and back: volumes of a cluster, and manifests in files."""
