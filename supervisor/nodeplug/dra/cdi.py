"""CDI specs of prepared claims: the only way in which a container gets anything by Dynamic Resource Allocation.

Owns: what a grant becomes in a spec, the names of devices and files, writing and looking after them.
Refuses: specs of others, and hooks: kubelet may apply a device twice (kubernetes#140471).

Source: Container Device Interface, SPEC.md 0.5.0. The folder is usually on a tmpfs, and a file that is lost there fails
every later start of the container (kubernetes#141433): all are written again from the records.
"""

import json
import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.errors import PluginError
from nodeplug.contract.values import Grant
from nodeplug.dra.records import ClaimRecord

_VERSION: Final = "0.5.0"
_CLASS: Final = "claim"
_MODE: Final = 0o644
_ABANDONED: Final = 60.0
"""Seconds after which nobody is writing a temporary file any more."""


def kind_of(driver: str) -> str:
    """Return the kind of a driver's CDI devices: `gpu.nodeplug.io/claim`."""
    return f"{driver}/{_CLASS}"


def device_of(uid: str, request: str) -> str:
    """Return the name of the CDI device for a request of a claim; no other claim ever has it."""
    return f"{uid}-{request.replace('/', '.')}"


def names_of(driver: str, record: ClaimRecord, request: str) -> tuple[str, ...]:
    """Return the CDI names that a request of a claim gets: its own, and those that the plugin has granted."""
    grant = record.grants[request]
    own = (f"{kind_of(driver)}={device_of(record.claim.uid, request)}",) if _edits(grant) else ()
    return own + grant.cdi


def spec_of(driver: str, record: ClaimRecord) -> dict[str, Any] | None:
    """Return the spec of a claim; None if its grants have nothing that a spec could say."""
    edits = {request: _edits(grant) for request, grant in record.grants.items()}
    devices = [
        {"name": device_of(record.claim.uid, request), "containerEdits": one} for request, one in edits.items() if one
    ]
    return {"cdiVersion": _VERSION, "kind": kind_of(driver), "devices": devices} if devices else None


def _edits(grant: Grant) -> dict[str, Any]:
    edits: dict[str, Any] = {}
    if grant.env:
        edits["env"] = [f"{name}={value}" for name, value in grant.env.items()]
    if grant.nodes:
        edits["deviceNodes"] = [
            {"path": one.container_path or one.host_path, "hostPath": one.host_path, "permissions": one.permissions}
            for one in grant.nodes
        ]
    if grant.mounts:
        edits["mounts"] = [
            {
                "hostPath": one.host_path,
                "containerPath": one.container_path,
                "options": ["rbind", "rprivate", "ro" if one.read_only else "rw"],
            }
            for one in grant.mounts
        ]
    return edits


@dataclass(frozen=True, slots=True)
class SpecFolder:
    """Where the specs of one driver lie. Every method may block.

    Attributes:
        folder: that runtimes read.
        driver: whose.
    """

    folder: Path
    driver: str

    def write(self, record: ClaimRecord) -> None:
        """Write the spec of a claim, if it is not there as it should be.

        Raises:
            PluginError: the folder cannot be written.
        """
        document = spec_of(self.driver, record)
        if document is None:
            return
        path, data = self._path(record.claim.uid), json.dumps(document, indent=1).encode()
        with suppress(OSError):
            if read_bounded(path) == data:
                return
        passing = path.with_name(f".{path.name}.{os.getpid()}")  # no runtime reads it: another suffix, and hidden
        try:
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            passing.write_bytes(data)
            passing.chmod(_MODE)
            passing.rename(path)
        except OSError as error:
            with suppress(OSError):
                passing.unlink()
            raise PluginError(f"cannot write the CDI spec {path}: {error.strerror}; look at cdi_dir of [dra]") from None

    def remove(self, uid: str) -> None:
        """Remove the spec of a claim; succeed if it is gone, and if the folder refuses: the next look removes it."""
        with suppress(OSError):
            self._path(uid).unlink()

    def present(self) -> frozenset[str]:
        """Return the uids of all claims that have a spec here."""
        found = self.folder.glob(f"{self._prefix}*.json")
        return frozenset(path.name.removeprefix(self._prefix).removesuffix(".json") for path in found)

    def restore(self, records: Collection[ClaimRecord], ended: Collection[str]) -> None:
        """Write what is missing, and remove the specs of claims that have ended.

        Raises:
            PluginError: the folder cannot be written.
        """
        for path in self.folder.glob(f".{self._prefix}*.json.*"):  # of a write that was killed
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED:
                    path.unlink()
        for uid in ended:
            self.remove(uid)
        for one in records:
            self.write(one)

    @property
    def _prefix(self) -> str:
        return f"{self.driver}-{_CLASS}_"

    def _path(self, uid: str) -> Path:
        return self.folder / f"{self._prefix}{uid}.json"


def complaints(grants: Mapping[str, Grant]) -> list[str]:
    """Return what of grants this front cannot pass on."""
    lost = sorted({name for grant in grants.values() for name in grant.annotations})
    return [f"the annotation {name!r}: Dynamic Resource Allocation has none" for name in lost]
