"""`python -m nodeplug.worker DESCRIPTOR VERSION`: what the daemon starts for a plugin in a process of its own."""

import sys

from nodeplug.worker.inside import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
