"""Execute a command to which the kernel refuses what the default seccomp profile of container runtimes refuses it.

confined.py COMMAND [ARGUMENT...]

Owns: the filter, as far as a daemon could notice: namespaces, mounts and keys are EPERM without CAP_SYS_ADMIN.
Source: containerd, contrib/seccomp/seccomp_default.go.
"""

import ctypes
import os
import struct
import sys

NUMBERS = {
    "x86_64": {"unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "keyctl": 250, "open_tree": 428},
    "aarch64": {"unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "keyctl": 219, "open_tree": 428},
}
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1  # EPERM


def confine() -> None:
    """Install the filter for this process and what it executes."""
    refused = list(NUMBERS[os.uname().machine].values())
    lines = [(_LOAD, 0, 0, 0)]
    lines += [(_EQUAL, len(refused) - place, 0, number) for place, number in enumerate(refused)]
    lines += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(lines), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for words in ((_NO_NEW_PRIVS, 1, 0, 0, 0), (_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*words) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {words[0]}")


if __name__ == "__main__":
    confine()
    os.execvp(sys.argv[1], sys.argv[1:])
