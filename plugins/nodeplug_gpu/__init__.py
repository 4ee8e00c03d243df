"""A shared GPU for Kubernetes pods; see docs/gpu.md."""
