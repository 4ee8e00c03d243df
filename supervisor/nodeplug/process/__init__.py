"""The daemon as one process: its event loop, what may block beside it, its limits, and what systemd hears of it.

Refuses: plugin code, which has threads of its own (`nodeplug.hosting.runner`).
"""
