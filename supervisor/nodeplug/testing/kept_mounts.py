"""Executes a program in a fresh mount namespace, and lets none of its mounts reach another one.

A module of its own, since Python warns where the package has imported what `-m` executes.
"""

import os
import sys

from nodeplug.testing.namespaces import keep_mounts

if __name__ == "__main__":
    keep_mounts()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - a program and its arguments, no shell
