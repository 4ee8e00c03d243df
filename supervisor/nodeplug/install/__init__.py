"""Bringing the entrypoints to where runtimes and kubelet execute them: whose names, what text, which files."""
