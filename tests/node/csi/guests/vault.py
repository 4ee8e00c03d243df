"""A volume with the pod's token, which is renewed while the pod runs."""

import json
from pathlib import Path

from nodeplug import (
    AlreadyExists,
    Claim,
    Host,
    InvalidRequest,
    NotFound,
    NotReady,
    PluginError,
    VolumeClaim,
    VolumePublish,
    hookimpl,
    mount,
)

TOKENS = "csi.storage.k8s.io/serviceAccount.tokens"
SITUATIONS: dict[str, type[PluginError]] = {
    "not ready": NotReady,
    "not found": NotFound,
    "already exists": AlreadyExists,
    "invalid": InvalidRequest,
}


class Vault:
    """The plugin; what its file `sick` names fails each refresh."""

    def __init__(self, config: object, host: Host) -> None:
        self._sick = host.state_dir / "sick"

    @hookimpl
    def claims(self) -> list[Claim]:
        return [VolumeClaim("acme/vault", inline=True, republish=True, tokens=("vault",))]

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        mount("tmpfs", request.target_path, "tmpfs")
        self._write(request)

    @hookimpl
    def volume_refresh(self, request: VolumePublish) -> None:
        if self._sick.exists():
            raise SITUATIONS[self._sick.read_text()]("the server is away")
        self._write(request)

    def _write(self, request: VolumePublish) -> None:
        tokens = json.loads(request.secrets[TOKENS])
        (Path(request.target_path) / "token").write_text(tokens["vault"]["token"])
