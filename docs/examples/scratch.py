"""A small volume driver: memory that pods of this node share if they name the same volume."""

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import Host, InvalidRequest, VolumeClaim, VolumeId, VolumeIdentify, VolumeStage, hookimpl, mount


class ScratchConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    size: str = Field("16m", description="the size of every volume, as tmpfs(5) writes it")


class Scratch:
    Config = ScratchConfig

    def __init__(self, config: ScratchConfig, host: Host) -> None:
        self.size = config.size

    @hookimpl
    def claims(self) -> list[VolumeClaim]:
        return [VolumeClaim("example/scratch")]

    @hookimpl
    def volume_id(self, request: VolumeIdentify) -> VolumeId:
        if not request.options.get("name"):
            raise InvalidRequest("scratch needs the option name; pods that give the same name share the volume")
        return VolumeId(request.options["name"])

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        mount("tmpfs", request.staging_path, "tmpfs", options=["nosuid", "nodev", "mode=1777", f"size={self.size}"])
