"""gRPC's own descriptors, held for as long as the daemon lives.

Owns: one channel that dials nobody. With the last channel or server of a process gRPC closes the descriptors on which
its threads wait, and makes them anew for the next one; where the kernel refuses them (EMFILE, ENFILE), it aborts the
process. Whoever polls a kubelet that is away would meet that at each look; with one channel kept it is met at the
start alone, before the daemon answers anybody, when every limit is far. The first channel also reads /dev/urandom, and
gRPC aborts the process where that cannot be opened.
Refuses: calls. Nothing is ever sent on it, so it has neither connection nor timer.
"""

import grpc.aio


def hold() -> grpc.aio.Channel:
    """Keep them until the channel is closed; call it on the event loop."""
    return grpc.aio.insecure_channel("unix:/dev/null", (("grpc.enable_http_proxy", 0),))
