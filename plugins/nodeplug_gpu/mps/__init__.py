"""CUDA MPS: several containers on one card at once, each within its limits (NVIDIA, "Multi-Process Service").

Owns: `client`, what a container needs; `daemon`, the life cycle of one control daemon; `cards`, which cards have one.
Refuses: to limit containers: MPS limits are per process, and two processes of one container get twice the memory.
"""
