"""The CSI front: one driver per volume claim, for kubelet and sidecars, over the same volumes as FlexVolume."""
