"""What every API server that is acted out has in common: objects in memory, and HTTP on loopback.

Owns: nothing of its own: `store` has the objects, `handler` the wire.
"""
