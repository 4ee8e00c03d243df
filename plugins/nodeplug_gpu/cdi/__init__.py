"""The Container Device Interface: what a runtime adds to a container that is given one of our devices by name.

Owns: `names`, which names the runtime knows; `specs`, the files that we write and why a card cannot be given by name.
Refuses: which cards a container gets.
"""
