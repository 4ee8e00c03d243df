"""What a FUSE program finds in place of fusermount(1).

Owns: the answer to libfuse: it hands over the connection that nodeplug has mounted already, on the socket whose number
is in _FUSE_COMMFD (libfuse, lib/mount_util.c and util/fusermount.c).
Refuses: to mount or unmount, which nodeplug does: `-u` succeeds without doing anything.

It is a copy of this file, executed by the user of the program: only the standard library, without `site`.
"""

import os
import socket
import sys


def main(arguments: "list[str]") -> None:
    """Answer libfuse."""
    if any(word in {"-u", "--unmount", "-uz", "-V", "--version"} for word in arguments):
        return
    with socket.socket(fileno=int(os.environ["_FUSE_COMMFD"])) as asked:
        socket.send_fds(asked, [b"\0"], [int(os.environ["NODEPLUG_FUSE_CONNECTION"])])


if __name__ == "__main__":
    main(sys.argv[1:])
