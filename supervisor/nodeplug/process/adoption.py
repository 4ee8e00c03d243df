"""Started beside a daemon, it starts the next one and ends, so that the next one is nobody's child but systemd's.

Owns: that step, and the first word over the socket between the two: which process it is, with a descriptor of it.
Refuses: everything else; the daemon before goes on meanwhile, and learns of a failure by the end of the socket.

Where a process becomes the main one as another's child, systemd may not notice its end, and does not wait for it when
the unit is stopped: SIGKILL follows SIGTERM at once (seen with systemd 257). Orphans are children of systemd.
"""

import json
import os
import socket
import sys

from nodeplug.process.execution import DESCRIPTOR, execute


def main() -> None:
    """Start the program of the arguments, with the socket, and say which process that is."""
    with socket.socket(fileno=DESCRIPTOR) as end:
        pid = execute(sys.argv[1:], os.environ, end.fileno())
        socket.send_fds(end, [json.dumps({"word": "started", "pid": pid}).encode()], [os.pidfd_open(pid)])


if __name__ == "__main__":
    main()
