"""A provisioner's side of CSI: a volume that is made for somebody, and deleted when it is not wanted any more.

Owns: CreateVolume and DeleteVolume around a block.
Refuses: parameters, which only the driver knows, and objects of a cluster.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import grpc

from nodeplug.pb import csi_v1_pb2 as pb
from nodeplug.pb import csi_v1_pb2_grpc as pb_grpc
from nodeplug.testing.csi_caller.caller import CsiCaller
from nodeplug.testing.csi_caller.calls import OPTIONS, CsiFailure, answered
from nodeplug.testing.csi_caller.volumes import CsiVolume, capability_of


@contextmanager
def created(caller: CsiCaller, name: str, *, block: bool = False, size: int = 0) -> Iterator[CsiVolume]:
    """Have a driver make a volume, and delete it after the block, in which no pod may keep it.

    Args:
        caller: of the driver.
        name: of the volume.
        block: it is a device.
        size: in bytes; 0 leaves it to the driver.

    Raises:
        CsiFailure: the driver cannot.
    """
    capability = capability_of(CsiVolume(name, block=block), writers=False)
    wanted = pb.CapacityRange(required_bytes=size)
    request = pb.CreateVolumeRequest(name=name, volume_capabilities=[capability], capacity_range=wanted)
    limit = caller.timeouts.call
    with grpc.insecure_channel(f"unix:{caller.register().endpoint}", OPTIONS) as channel:
        stub = pb_grpc.ControllerStub(channel)
        made = answered("CreateVolume", lambda: stub.CreateVolume(request, timeout=limit).volume)
        gone = pb.DeleteVolumeRequest(volume_id=made.volume_id)
        try:
            yield CsiVolume(name, dict(made.volume_context), made.volume_id, block=block)
        except BaseException:
            with suppress(CsiFailure):  # as of a pod that has it: what went wrong before is what is told
                answered("DeleteVolume", lambda: stub.DeleteVolume(gone, timeout=limit))
            raise
        answered("DeleteVolume", lambda: stub.DeleteVolume(gone, timeout=limit))
