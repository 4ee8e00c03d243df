"""Limits by the kernel: the driver bounds what the cgroup of a container has of a card, which no tenant can lift.

The way of one limit: `limits` names it when units are allocated, `spec` describes that name to the runtime, the runtime
runs `hook` when it creates the container, the hook asks at `door`, and `held` records what the driver has confirmed.
"""
