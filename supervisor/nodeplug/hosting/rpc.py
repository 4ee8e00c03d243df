"""The end of a gRPC call that failed.

Owns: the status of an error, and its message with the id of the request.
Refuses: to log or to mask: the front has done both.
"""

from typing import Any, NoReturn

import grpc

from nodeplug.contract.errors import PluginError, wire, with_request


async def abort(context: Any, error: PluginError) -> NoReturn:
    """End a call of grpc.aio with the status of an error, in the thread of the event loop.

    Args:
        context: of the call (grpc.aio.ServicerContext).
        error: what its caller is told; the request's id stands in it if the front has logged it.
    """
    await context.abort(grpc.StatusCode[wire(error).grpc], with_request(error.message, error))
    raise AssertionError from error  # abort raises: this line tells the type checker so
