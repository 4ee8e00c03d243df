"""The configuration of GPUs.

Owns: the schema of `[plugins.gpu.config]` and the rules that can be checked without looking at the node.
Refuses: to inspect cards (`pool` assigns them to entries), and resource names (the host checks every claim).
"""

from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    WrapValidator,
    model_validator,
)

from nodeplug.fields import ExtendedResource, Quantity, Seconds
from nodeplug_gpu.choice import CardMemory, Cards, Model
from nodeplug_gpu.driver.simulated import SimulatedCard
from nodeplug_gpu.profiles import DEFAULT_SINGLE, MigKeys

APPLICATION_XIDS = (13, 31, 43, 45, 68, 109)
"""XIDs that a faulty application causes on a sound card (NVIDIA, "XID Errors"; NVIDIA's own plugin skips the same)."""
MAX_CLIENTS = 48
"""Client processes of one card (NVIDIA, "Multi-Process Service", Volta and later)."""


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
_MaybeResource = Annotated[ExtendedResource, WrapValidator(lambda name, check: check(name) if name else "")]
Beside = Literal["gdrcopy", "gds", "mofed"]
Withhold = Literal["after-refusal", "always", "never"]
_CDI_KIND = r"^[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?$"
"""As parsers of CDI check it (pkg/parser of its reference implementation)."""
Kind = Literal["exclusive", "replicas", "memory", "mig"]


class Mps(Model):
    """One MPS control daemon per shared card, and limits for each container by the units that it asked for."""

    command: str = Field("nvidia-cuda-mps-control", description="The control program, below driver_root or on PATH.")
    thread_percentage: bool = Field(
        True, description="Limit the share of multiprocessors too (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE)."
    )
    exclusive_process: bool = Field(
        True, description="Let only MPS clients onto the card (`nvidia-smi -c EXCLUSIVE_PROCESS`)."
    )
    multiuser_server: Literal["auto"] | bool = Field(
        False,
        description="Serve clients of all users at a time (`-multiuser-server`), all as root; `auto`: where driver and "
        "card can.",
    )
    require_limits: bool = Field(
        False, description="Keep cards on which MPS can set no limits from being allocated; otherwise they are logged."
    )
    shm_size: Quantity = Field(
        64 << 20,
        ge=1 << 20,
        description="The memory that all clients of a card share with its daemon, as their /dev/shm.",
    )
    stop_after: Seconds = Field(10.0, description="How long a control daemon may take to end before it is killed.")


class Overuse(Model):
    """What happens to a container that uses more memory than it was allocated. Metrics always show it."""

    grace: Seconds = Field(60.0, description="How long it may last before a warning is logged.")
    tolerance: Quantity = Field(256 << 20, description="What a container may use beyond its units: CUDA's own context.")
    kill_after: Seconds | None = Field(
        None, description="How long after the warning its processes get SIGTERM, then SIGKILL; never by default."
    )


class Access(Model):
    """How a container gets access to its card."""

    visible_devices: Literal["uuid", "index", "none"] = Field(
        "uuid", description="What NVIDIA_VISIBLE_DEVICES names cards by; `index` is what gpushare wrote."
    )
    device_list: Literal["envvar", "volume-mounts"] = Field(
        "envvar",
        description="Where NVIDIA's runtime finds these names: in the variable, or as mounts below "
        "/var/run/nvidia-container-devices, which no image brings along.",
    )
    device_nodes: bool = Field(
        False, description="Pass /dev/nvidia* to the container; for runtimes without NVIDIA's hook."
    )
    beside: tuple[Beside, ...] = Field(
        (),
        description="Pass device nodes beside those of cards, where the node has them: `gdrcopy` /dev/gdrdrv; `gds` "
        "/dev/nvidia-fs*; `mofed` /dev/infiniband/uverbs* and rdma_cm.",
    )
    imex_channels: tuple[Annotated[int, Field(ge=0, le=2047)], ...] = Field(
        (), description="Pass these IMEX channels, /dev/nvidia-caps-imex-channels/channelN, where the node has them."
    )
    imex_required: bool = Field(
        False, description="Refuse an allocation while a channel of `imex_channels` is missing."
    )
    cdi: Literal["none", "field", "annotation"] = Field(
        "none", description="Name CDI devices in kubelet's field (1.29 and later) or in the annotation for older ones."
    )
    cdi_kind: str = Field(
        "nodeplug.io/gpu", pattern=_CDI_KIND, description="Vendor and class of the CDI names, such as nvidia.com/gpu."
    )
    cdi_write: bool = Field(
        True,
        description="Write the CDI spec and keep it up to date; off where nvidia-ctk writes one: a card is allocatable "
        "while a spec in /etc/cdi or `cdi_folder` has its UUID.",
    )
    cdi_folder: Path = Field(Path("/var/run/cdi"), description="Where the spec is written.")

    @model_validator(mode="after")
    def _mounts_have_names(self) -> Self:
        if self.device_list == "volume-mounts" and self.visible_devices == "none":
            raise ValueError(
                '`device_list = "volume-mounts"` names cards by mounts, and `visible_devices = "none"` names none; '
                'choose "uuid" or "index"'
            )
        return self


class _Resource(Model):
    resource: ExtendedResource = Field(description="The resource's name, such as nvidia.com/gpu.")
    cards: Cards = Field(default_factory=Cards, description="Which cards it advertises; all by default.")
    access: Access = Field(default_factory=Access, description="How a container gets access to its card.")


class Exclusive(_Resource):
    """Whole cards, one container each."""

    sharing: Literal["exclusive"] = Field(description="Whole cards.")


class Replicas(_Resource):
    """Time-slicing: each card as several replicas, without any limit between its users."""

    sharing: Literal["replicas"] = Field(description="Replicas of each card (time-slicing).")
    replicas: int = Field(ge=2, le=1000, description="How many containers may share a card.")
    refuse_more_than_one: bool = Field(
        True, description="Refuse a container that asks for two: it would not get twice the time."
    )
    policy: Literal["binpack", "spread"] = Field("spread", description="Fill a card first, or use the emptiest.")
    mps: Mps | None = Field(None, description="Run MPS on these cards, with equal limits.")

    @model_validator(mode="after")
    def _mps_has_room_for_all(self) -> Self:
        if self.mps is not None and self.replicas > MAX_CLIENTS:
            raise ValueError(
                f"{self.replicas} replicas of a card with `mps`: it serves at most {MAX_CLIENTS} processes; use fewer"
            )
        return self


class Memory(_Resource):
    """Units of a card's memory; all units of a container are of one card."""

    resource: ExtendedResource = Field("aliyun.com/gpu-mem", description="The resource's name.")
    sharing: Literal["memory"] = Field(description="Units of memory.")
    unit: Quantity = Field(
        1 << 30, ge=1 << 20, description="The size of a unit; it grows where there would be too many."
    )
    reserve: Quantity = Field(0, description="Memory of each card that is not advertised, for CUDA's own contexts.")
    oversubscribe: float = Field(
        1.0,
        ge=1,
        le=16,
        description="How many times the memory of a card is advertised: above 1 containers that use what they were "
        "allocated may run out of it.",
    )
    policy: Literal["binpack", "spread"] = Field(
        "binpack", description="The fullest card that fits, or the emptiest one."
    )
    withhold: Withhold = Field(
        "after-refusal",
        description="When free units beyond those of the card that has most of them are listed as unhealthy, so that "
        "a pod that fits their sum and no card waits, and is not rejected: once one was, always, or never.",
    )
    max_units_per_card: int = Field(
        2000, ge=1, le=16000, description="With more units than this on the largest card, units become larger."
    )
    count_resource: _MaybeResource = Field(
        "aliyun.com/gpu-count",
        description='A resource that only counts the cards, healthy or not, as gpushare has; "" for none.',
    )
    overuse: Overuse = Field(
        default_factory=Overuse, description="What happens to containers that use more memory than they were allocated."
    )
    mps: Mps | None = Field(None, description="Run MPS on these cards, with limits by units.")


class Mig(_Resource, MigKeys):
    """Instances of cards in MIG mode."""

    sharing: Literal["mig"] = Field(description="MIG instances.")
    resource: ExtendedResource = Field(DEFAULT_SINGLE, description="The resource's name.")


Resource = Annotated[Exclusive | Replicas | Memory | Mig, Field(discriminator="sharing")]


class Health(Model):
    """When a card becomes unhealthy, and when it becomes healthy again."""

    enabled: bool = Field(True, description="Off: only cards that are no longer present are unhealthy.")
    ignore_xids: tuple[int, ...] = Field(
        (),
        description=f"More XIDs to ignore, besides {', '.join(map(str, APPLICATION_XIDS))}, which applications cause.",
    )
    fatal_xids: tuple[int, ...] = Field(
        (),
        description="XIDs that make a card unhealthy at once, even if they are in `ignore_xids`; the card also where a "
        "MIG instance alone has one.",
    )
    strikes: int = Field(3, ge=1, description="How many minor faults within `window` make a card unhealthy.")
    window: Seconds = Field(300.0, description="For how long a minor fault counts.")
    probation: Seconds = Field(
        60.0, description="How long a card must be without faults before it is allocatable again."
    )


class GpuConfig(Model):
    """`[plugins.gpu.config]`."""

    resources: tuple[Resource, ...] = Field(min_length=1, description="What is advertised, and how it is shared.")
    driver: Literal["nvml", "simulated"] = Field("nvml", description="Real cards, or those of `simulated`.")
    driver_root: Path = Field(Path("/"), description="Where the driver's libraries are, such as /run/nvidia/driver.")
    node_root: AbsolutePath | None = Field(
        None,
        description="In a pod: where the node's own root is mounted, such as /node/root. Paths below it are told to "
        "kubelet and in CDI specs as the node has them, and its programs are found there.",
    )
    dev_root: AbsolutePath = Field(
        Path("/"), description="What has the driver's /dev, where that is not the node's: such as /run/nvidia/driver."
    )
    cdi_hook: str = Field(
        "auto",
        pattern=r"^(auto|nodeplug|none|/.+)$",
        description="What makes the linker of a container find the libraries of a CDI spec: the path of NVIDIA's "
        "nvidia-cdi-hook or nvidia-ctk on the node, `nodeplug` (its own hook, by the node's python3), `none`, or "
        "`auto`: the first of them that the node has.",
    )
    limits: Literal["auto", "kernel", "mps", "observe"] | None = Field(
        None,
        description="What keeps containers within their share of a card: `kernel` (the driver, by cgroup; a card that "
        "cannot is not allocated), `mps`, `observe`, `auto` (the strongest there is); by default as `mps` says.",
    )
    poll: Seconds = Field(5.0, description="How often cards are polled.")
    hang_after: Seconds = Field(
        30.0, description="How long the driver may take to answer before its process is replaced."
    )
    health: Health = Field(default_factory=Health, description="When a card becomes unhealthy.")
    memory: tuple[CardMemory, ...] = Field(
        (), description="The memory of cards whose driver does not tell it; the first one that is for a card holds."
    )
    simulated: tuple[SimulatedCard, ...] = Field((), description="Cards of the driver `simulated`.")
    feature_file: AbsolutePath | None = Field(
        None,
        description="Write the labels of the node there for node-feature-discovery, such as "
        "/etc/kubernetes/node-feature-discovery/features.d/nodeplug-gpu.",
    )
    gpushare: bool = Field(
        False,
        description="With [cluster]: write the annotations of pods and the ConfigMap of unhealthy cards that "
        "gpushare's extender and `kubectl inspect gpushare` read.",
    )

    @model_validator(mode="after")
    def _limits_do_not_contradict_mps(self) -> Self:
        shared = [one for one in self.resources if isinstance(one, Memory | Replicas)]
        if self.limits in {"kernel", "mps"} and not shared:
            raise ValueError(
                f"`limits` = '{self.limits}' is about cards that containers share, and no entry shares any"
            )
        for one in shared:
            if (one.mps is None and self.limits == "mps") or (one.mps is not None and self.limits == "observe"):
                found = "has no `mps` table" if one.mps is None else "has an `mps` table, which limits"
                raise ValueError(f"`limits` = '{self.limits}' and `mps` contradict each other: {one.resource} {found}")
        return self

    @model_validator(mode="after")
    def _gpushare_knows_one_resource(self) -> Self:
        if self.gpushare and not any(one.resource == "aliyun.com/gpu-mem" for one in self.resources):
            raise ValueError("`gpushare` is about the resource aliyun.com/gpu-mem, and no entry of `resources` has it")
        return self

    @model_validator(mode="after")
    def _simulated_cards_belong_to_their_driver(self) -> Self:
        if (self.driver == "simulated") != bool(self.simulated):
            raise ValueError("`simulated` describes the cards of driver = 'simulated': needed there, refused elsewhere")
        return self

    @model_validator(mode="after")
    def _no_name_is_advertised_twice(self) -> Self:
        names = [name for resource in self.resources for name in resource_names(resource)]
        names += [entry.resource for entry in self.resources if entry.resource not in resource_names(entry)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)}: advertised twice; a name belongs to one entry of `resources`")
        return self

    @model_validator(mode="after")
    def _no_card_is_advertised_twice(self) -> Self:
        for one, other in combinations(self.resources, 2):
            if advertises_mig(one) == advertises_mig(other) and one.cards.must_overlap(other.cards):
                raise ValueError(
                    f"{one.resource} and {other.resource} would advertise the same card; give each its own `cards`"
                )
        return self


def advertises_mig(resource: Exclusive | Replicas | Memory | Mig) -> bool:
    """Whether an entry advertises MIG instances: then it takes the cards in MIG mode, and other entries the rest."""
    return isinstance(resource, Mig) and resource.strategy != "none"


def resource_names(resource: Exclusive | Replicas | Memory | Mig) -> tuple[str, ...]:
    """Return the resource names that an entry advertises."""
    match resource:
        case Mig(strategy="mixed"):
            return tuple(dict.fromkeys(resource.names.values()))
        case Memory() if resource.count_resource:
            return (resource.resource, resource.count_resource)
        case _:
            return (resource.resource,)
