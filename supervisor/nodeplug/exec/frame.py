"""The wire between the entrypoint scripts in bin/ and the daemon.

Owns: encoding and decoding of one request frame and one reply, simple enough for sixty lines of C:

    request   "NPX1" | u32 args | u32 env | u32 stdin | args: NUL-ended strings | env: NUL-ended NAME=VALUE | stdin
    reply     u8 exit status | u32 stdout | u32 stderr | stdout | stderr

Numbers are little-endian byte counts. args[0] is the style ("cni", "flex", "control" or "alive"), args[1] the path
under which the script was executed, the rest its arguments. File descriptors come with the first bytes (SCM_RIGHTS):
the caller's own network namespace, then the opened CNI_NETNS, if any. A spooled DEL is the same bytes without
descriptors.

The kernel accepts connections even for a stopped daemon. So after a while without a reply, an entrypoint sends "alive"
on a second connection, which is answered at once; any byte is a sign of life. Either side may be upgraded first: an
older daemon refuses the style, which is a sign of life too, and an older entrypoint never sends it.
Refuses: protocol knowledge, sockets.
"""

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from nodeplug.contract.errors import Undecodable
from nodeplug.contract.inputs import EXEC_FRAME

MAGIC: Final = b"NPX1"
ALIVE: Final = "alive"
"""The style that is answered at once, without a handler: it distinguishes a busy daemon from a stopped one."""
SUCCESSION: Final = "succession"
"""The style of a daemon that asks for the place of the one that serves; its descriptor is a socket between the two."""
HEADER: Final = struct.Struct("<4sIII")
REPLY_HEADER: Final = struct.Struct("<BII")
LIMIT: Final = EXEC_FRAME.size
"""The largest body, in bytes: network configurations are kilobytes; kubelet's argv is at most 128 KiB."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One execution of an entrypoint script."""

    style: str
    path: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""

    @property
    def name(self) -> str:
        """The name under which the script was executed."""
        return os.path.basename(self.path)  # noqa: PTH119 - a name on the wire, not a file here

    def encode(self) -> bytes:
        """Write the frame, header included."""
        args = b"".join(os.fsencode(text) + b"\0" for text in (self.style, self.path, *self.argv))
        env = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in self.env.items())
        return HEADER.pack(MAGIC, len(args), len(env), len(self.stdin)) + args + env + self.stdin

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a whole frame; Undecodable says what is wrong with it."""
        if len(data) < HEADER.size:
            raise Undecodable(f"a frame has a header of {HEADER.size} bytes, {len(data)} arrived")
        total = body_size(data[: HEADER.size])
        if len(data) - HEADER.size != total:
            raise Undecodable(f"the frame announces {total} bytes, {len(data) - HEADER.size} arrived")
        _, args_size, env_size, _ = HEADER.unpack_from(data)
        env_start = HEADER.size + args_size
        args = _strings(data[HEADER.size : env_start], "argument")
        pairs = _strings(data[env_start : env_start + env_size], "variable")
        if len(args) < 2:
            raise Undecodable("a frame names its style and its executed path; found fewer than two arguments")
        env = {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
        return cls(args[0], args[1], tuple(args[2:]), env, data[env_start + env_size :])


def body_size(header: bytes) -> int:
    """Return how many bytes follow a header; Undecodable if it is not a frame's, or they are more than LIMIT."""
    magic, *sizes = HEADER.unpack(header)
    if magic != MAGIC:
        raise Undecodable(f"not a nodeplug frame: it starts with {magic!r}, expected {MAGIC!r}")
    total: int = sum(sizes)
    if total > LIMIT:
        raise Undecodable(f"the request has {total} bytes; at most {LIMIT} are accepted")
    return total


def _strings(blob: bytes, what: str) -> list[str]:
    if not blob:
        return []
    if not blob.endswith(b"\0"):
        raise Undecodable(f"the last {what} of the frame does not end with NUL")
    return os.fsdecode(blob[:-1]).split("\0")


@dataclass(frozen=True, slots=True)
class Reply:
    """What the script prints, and its exit status."""

    exit: int = 0
    stdout: bytes = b""
    stderr: bytes = b""

    def encode(self) -> bytes:
        """Write the reply, header included."""
        return REPLY_HEADER.pack(self.exit, len(self.stdout), len(self.stderr)) + self.stdout + self.stderr

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a whole reply; Undecodable if it is truncated."""
        if len(data) < REPLY_HEADER.size:
            raise Undecodable(f"a reply has a header of {REPLY_HEADER.size} bytes, {len(data)} arrived")
        status, out, err = REPLY_HEADER.unpack_from(data)
        body = data[REPLY_HEADER.size :]
        if len(body) != out + err:
            raise Undecodable(f"the reply announces {out + err} bytes, {len(body)} arrived")
        return cls(status, body[:out], body[out:])
