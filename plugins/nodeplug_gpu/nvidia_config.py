"""The configuration of NVIDIA's device plugin, and what it is here.

Owns: version 1 of its file (`flags`, `resources`, `sharing`), the environment variables that stand for its flags, and
the `[plugins.gpu.config]` that does the same on a node; and a sentence for each key that has no counterpart.
Refuses: files, and to guess: a key that nobody knows is an error, as it is for NVIDIA's plugin.

Source: NVIDIA, k8s-device-plugin 0.20, its page "Configuration" and what its command line says.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import AliasGenerator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from nodeplug_gpu.profiles import DEFAULT_NAMES

_DOMAIN: Final = "nvidia.com/"
_GPU: Final = "nvidia.com/gpu"
ENVIRONMENT: Final[Mapping[str, str]] = {
    "MIG_STRATEGY": "flags.migStrategy",
    "FAIL_ON_INIT_ERROR": "flags.failOnInitError",
    "NVIDIA_DRIVER_ROOT": "flags.nvidiaDriverRoot",
    "NVIDIA_DEV_ROOT": "flags.nvidiaDevRoot",
    "GDRCOPY_ENABLED": "flags.gdrcopyEnabled",
    "GDS_ENABLED": "flags.gdsEnabled",
    "MOFED_ENABLED": "flags.mofedEnabled",
    "DEVICE_DISCOVERY_STRATEGY": "flags.deviceDiscoveryStrategy",
    "MPS_ROOT": "flags.mpsRoot",
    "PASS_DEVICE_SPECS": "flags.plugin.passDeviceSpecs",
    "DEVICE_LIST_STRATEGY": "flags.plugin.deviceListStrategy",
    "DEVICE_ID_STRATEGY": "flags.plugin.deviceIDStrategy",
    "CDI_ANNOTATION_PREFIX": "flags.plugin.cdiAnnotationPrefix",
    "NVIDIA_CDI_HOOK_PATH": "flags.plugin.nvidiaCTKPath",
    "NVIDIA_CTK_PATH": "flags.plugin.nvidiaCTKPath",
    "DRIVER_ROOT_CTR_PATH": "flags.plugin.containerDriverRoot",
    "CONTAINER_DRIVER_ROOT": "flags.plugin.containerDriverRoot",
    "SHARED_DEVICES_ALLOCATION_POLICY": "flags.plugin.sharedDevicesAllocationPolicy",
    "DP_DISABLE_HEALTHCHECKS": "health",
    "DP_ENABLE_HEALTHCHECKS": "health",
}
"""Variables that NVIDIA's plugin reads, by the key of its file that they stand for; `health` has none there."""


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=AliasGenerator(validation_alias=to_camel), populate_by_name=False
    )


def _several(value: Any) -> Any:
    return [part for one in value for part in str(one).split(",")] if isinstance(value, list) else str(value).split(",")


def _named(value: Any) -> Any:
    return value if not isinstance(value, str) or value.startswith(_DOMAIN) else _DOMAIN + value


Name = Annotated[str, BeforeValidator(_named)]


class PluginFlags(_Model):
    """`flags.plugin`."""

    pass_device_specs: bool = False
    device_list_strategy: Annotated[
        list[Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]], BeforeValidator(_several)
    ] = ["envvar"]
    device_id_strategy: Literal["uuid", "index"] = Field("uuid", validation_alias="deviceIDStrategy")
    cdi_annotation_prefix: str | None = Field(None, validation_alias="cdiAnnotationPrefix")
    nvidia_ctk_path: str | None = Field(None, validation_alias="nvidiaCTKPath")
    container_driver_root: str | None = None
    shared_devices_allocation_policy: Literal["distributed", "packed"] = "distributed"


class Flags(_Model):
    """`flags`."""

    mig_strategy: Literal["none", "single", "mixed"] = "none"
    fail_on_init_error: bool | None = None
    mps_root: str | None = None
    nvidia_driver_root: str = "/"
    nvidia_dev_root: str | None = None
    gdrcopy_enabled: bool = False
    gds_enabled: bool = False
    mofed_enabled: bool = False
    use_node_feature_api: bool | None = Field(None, validation_alias="useNodeFeatureAPI")
    device_discovery_strategy: str | None = None
    plugin: PluginFlags = PluginFlags()
    gfd: dict[str, Any] = {}


class ResourcePattern(_Model):
    """An entry of `resources.gpus` and `resources.mig`."""

    pattern: str
    name: Name


class Resources(_Model):
    """`resources`."""

    gpus: list[ResourcePattern] = []
    mig: list[ResourcePattern] = []


class ReplicatedResource(_Model):
    """An entry of `sharing.timeSlicing.resources` and `sharing.mps.resources`."""

    name: Name
    rename: Name | None = None
    devices: Any = "all"
    replicas: int = Field(ge=1)


class Replicated(_Model):
    """`sharing.timeSlicing` and `sharing.mps`."""

    rename_by_default: bool = False
    fail_requests_greater_than_one: bool | None = None
    resources: list[ReplicatedResource] = []


class Sharing(_Model):
    """`sharing`."""

    time_slicing: Replicated = Replicated()
    mps: Replicated | None = None


class Imex(_Model):
    """`imex`."""

    channel_ids: list[int] = Field([], validation_alias="channelIDs")
    required: bool = False


class NvidiaConfig(_Model):
    """The file."""

    version: Literal["v1"]
    flags: Flags = Flags()
    resources: Resources = Resources()
    sharing: Sharing = Sharing()
    imex: Imex = Imex()


@dataclass(frozen=True, slots=True)
class Translation:
    """The same here.

    Attributes:
        config: the table `[plugins.gpu.config]`.
        notes: one sentence for each key that means something else here, or nothing.
    """

    config: Mapping[str, Any]
    notes: Sequence[str]


@dataclass(slots=True)
class _Notes:
    found: list[str] = field(default_factory=list)

    def add(self, key: str, says: str, *, when: bool = True) -> None:
        if when:
            self.found.append(f"{key}: {says}")


def with_environment(document: Mapping[str, Any], environment: Mapping[str, str]) -> Mapping[str, Any]:
    """Return a file as it is with variables of NVIDIA's plugin, which come before what it says.

    Raises:
        ValueError: NVIDIA's plugin reads no variable of a name.
    """
    merged: dict[str, Any] = {**document, "flags": {**(document.get("flags") or {})}}
    merged["flags"]["plugin"] = {**(merged["flags"].get("plugin") or {})}
    for name, value in environment.items():
        key = ENVIRONMENT.get(name)
        if key is None:
            raise ValueError(
                f"{name}: NVIDIA's device plugin reads no such variable; it reads {', '.join(ENVIRONMENT)}"
            )
        if key != "health":
            table, _, last = key.removeprefix("flags.").rpartition(".")
            (merged["flags"][table] if table else merged["flags"])[last] = value
    if not merged["flags"]["plugin"]:
        del merged["flags"]["plugin"]
    return merged


def translate(document: Mapping[str, Any], environment: Mapping[str, str]) -> Translation:
    """Return what does here what a file and variables say to NVIDIA's plugin.

    Args:
        document: the file; with `version` alone it is that of the variables.
        environment: by name.

    Raises:
        ValidationError: it is no file of version 1.
        ValueError: a variable that it does not read.
    """
    read = NvidiaConfig.model_validate(with_environment(document, environment))
    notes = _Notes()
    config: dict[str, Any] = {}
    if read.flags.nvidia_driver_root != "/":
        config["driver_root"] = read.flags.nvidia_driver_root
    if read.flags.nvidia_dev_root not in {None, "/"}:
        config["dev_root"] = read.flags.nvidia_dev_root
    if read.flags.plugin.nvidia_ctk_path is not None:
        config["cdi_hook"] = read.flags.plugin.nvidia_ctk_path
    if health := _health(environment, notes):
        config["health"] = health
    access = {**_access(read.flags.plugin, notes), **_beside(read)}
    config["resources"] = [{**one, **({"access": access} if access else {})} for one in _entries(read, notes)]
    _say_what_is_not_here(read, notes)
    return Translation(config, sorted(notes.found))


def _health(environment: Mapping[str, str], notes: _Notes) -> Mapping[str, Any]:
    """XIDs are numbers in one variable; `all` and `xids` switch checks off, or back on."""
    off, on = (_words(environment.get(f"DP_{name}_HEALTHCHECKS", "")) for name in ("DISABLE", "ENABLE"))
    found: dict[str, Any] = {}
    if {"all", "xids"} & off and not {"all", "xids"} & on:
        found["enabled"] = False
    if numbers := sorted({int(one) for one in off if one.isdecimal()} - {int(one) for one in on if one.isdecimal()}):
        found["ignore_xids"] = numbers
    if numbers := sorted(int(one) for one in on if one.isdecimal()):
        found["fatal_xids"] = numbers
    strange = sorted(one for one in off | on if one not in {"all", "xids"} and not one.isdecimal())
    notes.add("DP_…_HEALTHCHECKS", f"{', '.join(strange)} is neither `all`, `xids` nor a number", when=bool(strange))
    notes.add("health", "cards also recover, which they do not with NVIDIA's plugin (docs/gpu.md)", when=bool(off | on))
    return found


def _words(text: str) -> set[str]:
    return {part.strip() for part in text.lower().split(",")} - {""}


def _access(flags: PluginFlags, notes: _Notes) -> dict[str, Any]:
    ways = flags.device_list_strategy
    found: dict[str, Any] = {}
    if not {"envvar", "volume-mounts"} & {*ways}:
        found["visible_devices"] = "none"
    elif flags.device_id_strategy == "index":
        found["visible_devices"] = "index"
    if "volume-mounts" in ways:
        found["device_list"] = "volume-mounts"
    if flags.pass_device_specs:
        found["device_nodes"] = True
    if "cdi-cri" in ways:
        found["cdi"] = "field"
    elif "cdi-annotations" in ways:
        found["cdi"] = "annotation"
    key = "flags.plugin.deviceListStrategy"
    both = {"envvar", "volume-mounts"} <= {*ways}
    notes.add(key, "of `envvar` and `volume-mounts` the mounts are taken; the variable names their folder", when=both)
    notes.add(
        key,
        "of both CDI ways, kubelet's field is taken: 1.29 and later",
        when={"cdi-cri", "cdi-annotations"} <= {*ways},
    )
    return found


def _beside(read: NvidiaConfig) -> dict[str, Any]:
    flags, imex = read.flags, read.imex
    asked = {"gdrcopy": flags.gdrcopy_enabled, "gds": flags.gds_enabled, "mofed": flags.mofed_enabled}
    found: dict[str, Any] = {"beside": names} if (names := [name for name, on in asked.items() if on]) else {}
    if imex.channel_ids:
        found |= {"imex_channels": imex.channel_ids, **({"imex_required": True} if imex.required else {})}
    return found


# --- what is advertised ---------------------------------------------------------------------------------------------


def _entries(read: NvidiaConfig, notes: _Notes) -> Iterator[dict[str, Any]]:
    strategy = read.flags.mig_strategy
    patterns = [one for one in read.resources.gpus if (one.pattern, one.name) != ("*", _GPU)]
    notes.add(
        "resources",
        "NVIDIA's plugin passes it over so far, and its pods ask for nvidia.com/gpu; here they ask for these names",
        when=bool(patterns or read.resources.mig),
    )
    gpus = read.resources.gpus or [ResourcePattern(pattern="*", name=_GPU)]
    named = {one.pattern: one.name for one in read.resources.mig} or DEFAULT_NAMES
    _say_unshared(read, {one.name for one in gpus} | {*(named.values() if strategy == "mixed" else ())}, notes)
    if strategy == "single":
        yield {"sharing": "mig", "strategy": "single", **_instances(read, {"*": gpus[-1].name}, notes)}
        notes.add(
            "flags.migStrategy", "`single` is of cards in MIG mode alone; for others, add an entry of another name"
        )
        return
    for one in gpus:
        yield {**_whole(read, one.name, notes), **({"cards": {"model": [one.pattern]}} if one.pattern != "*" else {})}
    if strategy == "mixed":
        yield {"sharing": "mig", "strategy": "mixed", **_instances(read, named, notes)}
    notes.add(
        "flags.migStrategy",
        "with `none`, NVIDIA's plugin advertises cards in MIG mode as whole ones; here no entry has them",
        when="mig_strategy" in read.flags.model_fields_set and strategy == "none",
    )


def _say_unshared(read: NvidiaConfig, known: Collection[str], notes: _Notes) -> None:
    for where, replicated in (("timeSlicing", read.sharing.time_slicing), ("mps", read.sharing.mps or Replicated())):
        for one in replicated.resources:
            notes.add(
                f"sharing.{where}",
                f"{one.name} is not shared: nothing is advertised by that name",
                when=one.name not in known,
            )


def _instances(read: NvidiaConfig, named: Mapping[str, str], notes: _Notes) -> dict[str, Any]:
    """Return what an entry for MIG instances says beside its strategy.

    Args:
        read: the file.
        named: resources by patterns of profiles; by `*` alone for the strategy `single`.
        notes: of what it cannot say.
    """
    slicing = read.sharing.time_slicing
    counts = {one.name: one.replicas for one in slicing.resources if one.replicas > 1}
    counts = {} if read.sharing.mps is not None else counts  # of MIG instances NVIDIA's plugin refuses it
    shared = {pattern: counts[name] for pattern, name in named.items() if name in counts}
    suffix = ".shared" if slicing.rename_by_default else ""
    names = {pattern: f"{name}{suffix if pattern in shared else ''}" for pattern, name in named.items()}
    single = [*named] == ["*"] and read.flags.mig_strategy == "single"
    found: dict[str, Any] = {"resource": names["*"]} if single else {}
    if not single and names != DEFAULT_NAMES:
        found["profiles"] = names
    if shared:
        found["replicas"] = shared["*"] if single else shared
        found["refuse_more_than_one"] = bool(slicing.fail_requests_greater_than_one)
        if read.flags.plugin.shared_devices_allocation_policy == "packed":
            found["policy"] = "binpack"
    notes.add(
        "sharing.mps", "MIG instances are not shared by MPS, nor by NVIDIA's plugin", when=read.sharing.mps is not None
    )
    return found


def _whole(read: NvidiaConfig, name: str, notes: _Notes) -> dict[str, Any]:
    """Return the entry of whole cards, or of their replicas."""
    mps = read.sharing.mps is not None
    replicated = read.sharing.mps or read.sharing.time_slicing
    where = "sharing.mps" if mps else "sharing.timeSlicing"
    for one in replicated.resources:
        if one.name != name:
            continue
        notes.add(
            where,
            f"`devices` of {name} is passed over, as NVIDIA's plugin does; see `cards`",
            when=one.devices != "all",
        )
        notes.add(
            where,
            f"`rename` of {name} is passed over, as NVIDIA's plugin does; `resource` is the name",
            when=one.rename not in {None, f"{name}.shared" if replicated.rename_by_default else None},
        )
        if one.replicas < 2:
            break
        fails = replicated.fail_requests_greater_than_one
        packed = read.flags.plugin.shared_devices_allocation_policy == "packed"
        return {
            "sharing": "replicas",
            "resource": f"{name}.shared" if replicated.rename_by_default else name,
            "replicas": one.replicas,
            "refuse_more_than_one": mps if fails is None else fails,
            "policy": "binpack" if packed else "spread",
            **({"mps": {}} if mps else {}),
        }
    return {"sharing": "exclusive", "resource": name}


def _say_what_is_not_here(read: NvidiaConfig, notes: _Notes) -> None:
    flags, plugin = read.flags, read.flags.plugin
    notes.add(
        "flags.failOnInitError",
        "the daemon goes on without a driver, and advertises cards when it is there",
        when=flags.fail_on_init_error is not None,
    )
    notes.add("flags.mpsRoot", "the MPS daemons' folders are below the daemon's own", when=flags.mps_root is not None)
    notes.add("flags.deviceDiscoveryStrategy", "NVML alone is asked", when=flags.device_discovery_strategy == "tegra")
    notes.add("flags.plugin.cdiAnnotationPrefix", "it is cdi.k8s.io/", when=plugin.cdi_annotation_prefix is not None)
    notes.add(
        "flags.plugin.containerDriverRoot",
        "`driver_root` is the path that the daemon sees, and `node_root` where the node's root is mounted in its pod",
        when=plugin.container_driver_root is not None,
    )
    notes.add(
        "flags.gfd",
        "with a section [cluster] the labels are written to the Node itself, or to `feature_file` for NFD",
        when=bool(flags.gfd) or bool(flags.use_node_feature_api),
    )
