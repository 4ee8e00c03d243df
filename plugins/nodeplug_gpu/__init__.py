"""GPUs for pods: whole cards, shares of them, their memory by the unit, MIG instances; see docs/gpu.md."""
