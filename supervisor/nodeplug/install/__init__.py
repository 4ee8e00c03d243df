"""Installing the entrypoints where runtimes and kubelet execute them."""
