"""The two calls of kubelet to a driver, and what it makes of their answers.

Owns: the wire, the deadline, kubelet's words for a failure, and which answers it takes.
Refuses: to decide whom to call, and when.

Source: kubernetes 1.36, pkg/kubelet/cm/dra/{manager.go,plugin/dra_plugin.go}.
"""

from collections.abc import Sequence
from contextlib import closing
from typing import Any, TypeVar

import grpc

from nodeplug.pb import dra_v1_pb2 as pb
from nodeplug.testing.dra.instances import OPTIONS, Instance
from nodeplug.testing.dra.prepared import ClaimInfo, DeviceState

_Answer = TypeVar("_Answer", pb.NodePrepareResourcesResponse, pb.NodeUnprepareResourcesResponse)


class DriverFailure(Exception):
    """A call failed as a whole or for a claim; kubelet tries again for ever.

    Attributes:
        code: of gRPC, such as `UNAVAILABLE`; empty if there was an answer.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def prepare(instance: Instance, claims: Sequence[ClaimInfo], timeout: float) -> None:
    """Have claims prepared, and append what is answered to what is known of them.

    Raises:
        DriverFailure: at least one is not.
    """
    request = pb.NodePrepareResourcesRequest(claims=_named(claims))
    answer = _called(instance, "NodePrepareResources", request, pb.NodePrepareResourcesResponse, timeout)
    by_uid = {claim.uid: claim for claim in claims}
    for uid, result in answer.claims.items():
        if uid not in by_uid:
            raise DriverFailure(f"NodePrepareResources returned result for unknown claim UID {uid}")
        if result.error:
            raise DriverFailure(f"NodePrepareResources failed for ResourceClaim {by_uid[uid].name}: {result.error}")
        for one in result.devices:
            state = DeviceState(
                one.pool_name, one.device_name, one.share_id, list(one.request_names), list(one.cdi_device_ids)
            )
            by_uid[uid].drivers.setdefault(instance.driver, []).append(state)
    if skipped := len(claims) - len(answer.claims):
        raise DriverFailure(f"NodePrepareResources skipped {skipped} ResourceClaims")


def unprepare(instance: Instance, claims: Sequence[ClaimInfo], timeout: float) -> None:
    """Have claims unprepared.

    Raises:
        DriverFailure: at least one is not.
    """
    request = pb.NodeUnprepareResourcesRequest(claims=_named(claims))
    answer = _called(instance, "NodeUnprepareResources", request, pb.NodeUnprepareResourcesResponse, timeout)
    by_uid = {claim.uid: claim for claim in claims}
    for uid, result in answer.claims.items():
        if uid not in by_uid:
            raise DriverFailure(f"NodeUnprepareResources returned result for unknown claim UID {uid}")
        if result.error:
            raise DriverFailure(f"NodeUnprepareResources failed for ResourceClaim {by_uid[uid].name}: {result.error}")
    if skipped := len(claims) - len(answer.claims):
        raise DriverFailure(f"NodeUnprepareResources skipped {skipped} ResourceClaims")


def _named(claims: Sequence[ClaimInfo]) -> list[pb.Claim]:
    return [pb.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name) for claim in claims]


def _called(instance: Instance, method: str, request: Any, answer: type[_Answer], timeout: float) -> _Answer:
    with closing(grpc.insecure_channel(f"unix:{instance.endpoint}", OPTIONS)) as channel:
        # v1beta1 has the same messages under another name.
        call = channel.unary_unary(
            f"/{instance.service}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            found: _Answer = call(request, timeout=timeout)
        except grpc.RpcError as error:
            failed: Any = error
            code = failed.code().name
            raise DriverFailure(f"{method} failed: rpc error: code = {code} desc = {failed.details()}", code) from None
        return found
