"""The file in which kubelet keeps its ledger: `kubelet_internal_checkpoint`.

Owns: its JSON, written and read.
Refuses: to be kubelet's own: the checksum of the real file hashes a Go structure, here it is a CRC of the data.
"""

import base64
import json
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.testing.kubelet.ledger import DeviceAllocateInfo, Ledger

CHECKPOINT: Final = "kubelet_internal_checkpoint"


def write_checkpoint(folder: Path, ledger: Ledger, healthy: Mapping[str, Collection[str]], boot: str) -> None:
    """Write the ledger, and the healthy ids of each resource; `boot` is empty where kubelet stores no BootID."""
    places = [((key.pod_uid, key.container, resource), entry) for (key, resource), entry in ledger.entries.items()]
    places += ledger.orphans.items()
    data = {
        "PodDeviceEntries": [
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": resource,
                "DeviceIDs": {str(node): sorted(names) for node, names in sorted(entry.nodes.items())},
                "AllocResp": base64.b64encode(entry.response.SerializeToString()).decode(),
            }
            for (uid, container, resource), entry in sorted(places, key=lambda item: item[0])
        ],
        "RegisteredDevices": {resource: sorted(ids) for resource, ids in sorted(healthy.items())},
    }
    document = {"Data": data, "Checksum": _checksum(data), **({"BootID": boot} if boot else {})}
    temporary = folder / f".{CHECKPOINT}.new"
    temporary.write_text(json.dumps(document))
    temporary.replace(folder / CHECKPOINT)


def read_checkpoint(folder: Path, ledger: Ledger) -> frozenset[str]:
    """Fill a ledger that was reset; kubelet goes on without what it cannot read.

    Returns:
        The resources that were registered: each has no devices until its plugin registers again.
    """
    try:
        document = json.loads((folder / CHECKPOINT).read_bytes())
        data: dict[str, Any] = document["Data"]
        entries = {
            (item["PodUID"], item["ContainerName"], item["ResourceName"]): _entry(item)
            for item in data["PodDeviceEntries"] or ()
        }
        registered = frozenset(data["RegisteredDevices"])
        intact = document["Checksum"] == _checksum(data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return frozenset()
    if not intact:
        return frozenset()
    ledger.orphans = entries
    for container, kind in list(ledger.kinds.items()):
        ledger.meet(container, kind)
    ledger.rebuild()
    return registered


def _entry(item: Mapping[str, Any]) -> DeviceAllocateInfo:
    response = pb.ContainerAllocateResponse.FromString(base64.b64decode(item["AllocResp"]))
    return DeviceAllocateInfo({int(node): frozenset(names) for node, names in item["DeviceIDs"].items()}, response)


def _checksum(data: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(data, sort_keys=True).encode())
