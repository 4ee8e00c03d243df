"""Makes every mount in the current mount namespace private, then executes a program. The caller creates the namespace.

It is no part of `namespaces`: the package imports that module, and Python warns if `-m` executes it as well.
"""

import os
import sys

from nodeplug.testing.namespaces import keep_mounts

if __name__ == "__main__":
    keep_mounts()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - a program and its arguments, no shell
