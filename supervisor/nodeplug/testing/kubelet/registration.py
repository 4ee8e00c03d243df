"""How plugins make themselves known: the stand-in's Register service.

Owns: kubelet's checks and their messages.
Refuses: tables of resources: the owner handles the result of a registration.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc

API_VERSION: Final = "v1beta1"
"""The only one that kubelet takes."""
_NAME: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]")
_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class Refused(Exception):
    """Kubelet does not take a plugin, with its own sentence."""


def check_registration(version: str, resource: str) -> None:
    """Check what a plugin says of itself.

    Raises:
        Refused: another API version, or not an extended resource (IsExtendedResourceName).
    """
    if version != API_VERSION:
        raise Refused(
            f'requested API version "{version}" is not supported by kubelet. Supported version is ["{API_VERSION}"]'
        )
    prefix, slash, name = resource.partition("/")
    native = not slash or "kubernetes.io/" in resource or resource.startswith("requests.")
    if native or not _NAME.fullmatch(name) or not _PREFIX.fullmatch(prefix) or len(prefix) > 244:
        raise Refused(f'the ResourceName "{resource}" is invalid')


@dataclass(slots=True)
class Registrar(pb_grpc.RegistrationServicer):
    """Serves `v1beta1.Registration`.

    Attributes:
        accept: called with each request that passed the checks; raises Refused.
    """

    accept: Callable[[pb.RegisterRequest], Awaitable[None]]

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:  # noqa: N802 - the RPC's name
        """Check, let the owner dial back, answer; every refusal is UNKNOWN, as grpc-go makes of a plain error."""
        try:
            check_registration(request.version, request.resource_name)
            await self.accept(request)
        except Refused as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return pb.Empty()
