"""What plugins are written against: hooks, the values that cross them, errors, and what a plugin is given.

Owns: everything that a third party's code may meet; it is public as `nodeplug`.
Refuses: the daemon: nothing here knows of a loop, a wire or another plugin.
"""
