"""The unix socket behind `bin/*` and the command line: its wire, its server in the daemon, its client.

Refuses: what the frames mean (the fronts know).
"""
