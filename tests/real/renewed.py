"""A volume that says how often it was renewed while its pod runs."""

from collections.abc import Sequence
from pathlib import Path

from nodeplug import Claim, Host, NotFound, VolumeClaim, VolumePublish, hookimpl, mount


class Renewed:
    """The plugin; a file `gone` fails each refresh with what kubelet takes for final."""

    def __init__(self, config: object, host: Host) -> None:
        """Note where the file would be."""
        self._gone = host.state_dir / "gone"

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Own one driver."""
        return [VolumeClaim("acme/renewed", inline=True, republish=True)]

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        """Begin with 0."""
        mount("tmpfs", request.target_path, "tmpfs", options=["size=1m"])
        (Path(request.target_path) / "times").write_text("0")

    @hookimpl
    def volume_refresh(self, request: VolumePublish) -> None:
        """Count."""
        if self._gone.exists():
            raise NotFound("the server does not know this account any more")
        times = Path(request.target_path) / "times"
        times.write_text(f"{int(times.read_text()) + 1}")
