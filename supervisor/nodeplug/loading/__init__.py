"""From the name of a plugin to an object that has been checked against the contract, in whatever process it runs.

Owns: finding classes, constructing them, examining what they claim and implement, and the callers of their hooks.
Refuses: slots, threads, the event loop: a worker process uses this room without the daemon.
"""
