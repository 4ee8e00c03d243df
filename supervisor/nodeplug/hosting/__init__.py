"""Plugins in the daemon: from sections of the configuration to claims, routes and calls.

Owns: the registry, the life of each plugin, and the runner, the only caller of plugin code.
Refuses: protocols: a front asks for a route and hands the runner a value.
"""
