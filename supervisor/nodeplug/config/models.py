"""The configuration as frozen models.

Owns: the keys of every table but the plugins' own, their defaults, and the paths that follow from `root`.
Refuses: to read files (`nodeplug.config.reading`), and what stands in a plugin's own table.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from nodeplug.config.privileges import OWN_USER, Capability, Group, PluginUser, Privileges, User
from nodeplug.fields import Quantity, Seconds

_KUBECONFIG: Final = (
    "How to reach the API server; default: the file under [supervisor], $KUBECONFIG, or the pod's ServiceAccount."
)


def parse_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`.

    Raises:
        ValueError: it has another form; pydantic adds the key.
    """
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and host != f"[{bare}]"):
        raise ValueError(f"{address!r} is not an address; use host:port, such as 127.0.0.1:9808 or [::1]:9808")
    return bare, int(port)


def _check_address(address: str) -> str:
    if address:
        parse_address(address)
    return address


def _check_cgroup(path: str) -> str:
    if path and (not path.startswith("/") or not path.strip("/") or ".." in path.split("/")):
        raise ValueError(f"{path!r} is no cgroup below the root of a hierarchy, such as '/nodeplug'")
    return path


def _check_path(path: str) -> str:
    if path and not path.startswith("/"):
        raise ValueError(f"{path!r} is no absolute path; the daemon looks for it nowhere")
    return path


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Supervisor(_Model):
    """`[supervisor]`: the daemon itself. Every path is taken below `root`."""

    root: Path = Field(Path("/"), description="Prefix of every path below; `--root` overrides it.")
    drop_in_dir: str = Field(
        "plugins.d",
        description="Folder of more [plugins.*] tables, relative to this file; if named, it must exist; empty: none.",
    )
    node_name: str = Field("", description="The node's name in the cluster; empty: $NODE_NAME, or the host name.")
    exec_socket: Path = Field(Path("/run/nodeplug/exec.sock"), description="Where the entrypoint scripts connect.")
    state_dir: Path = Field(Path("/var/lib/nodeplug"), description="Survives a reboot: journal, spool.")
    run_dir: Path = Field(Path("/run/nodeplug"), description="Gone at reboot: attachments, staging.")
    cni_bin_dir: Path = Field(Path("/opt/cni/bin"), description="Where the runtime looks for CNI executables.")
    cni_conf_dir: Path = Field(Path("/etc/cni/net.d"), description="Where the runtime reads network configurations.")
    flexvolume_dir: Path = Field(
        Path("/usr/libexec/kubernetes/kubelet-plugins/volume/exec"), description="kubelet's --volume-plugin-dir."
    )
    device_plugins_dir: Path = Field(
        Path("/var/lib/kubelet/device-plugins"), description="Fixed in kubelet; its --root-dir does not move it."
    )
    plugins_registry_dir: Path = Field(
        Path("/var/lib/kubelet/plugins_registry"), description="kubelet's plugin watcher; moves with --root-dir."
    )
    podresources_socket: Path = Field(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"), description="Who holds which device."
    )
    device_registration: Literal["register", "watcher"] = Field(
        "register", description="'register': dial kubelet.sock; 'watcher': kubelet dials plugins_registry."
    )
    csi: bool = Field(
        False, description="Serve every volume driver over CSI, too, and register it with kubelet's plugin watcher."
    )
    kubeconfig: str = Field(
        "",
        description="How to reach the API server, to see that the CSINode lists the drivers; kubelet's own file will "
        "do. Empty: as the provisioner does, or the pod's ServiceAccount; without any of them nobody looks.",
    )
    csi_node_poll: Seconds = Field(50.0, description="How often it looks at the CSINode.")
    device_poll: Seconds = Field(10.0, description="How often every device list is read again.")
    podresources_poll: Seconds = Field(10.0, description="How often kubelet is asked who holds which device.")
    install: bool = Field(False, description="Install the entrypoint scripts of all claims at start and reload.")
    native_entrypoints: bool | Literal["auto"] = Field(
        "auto",
        description="Compiled entrypoints, brought along or made by the node's C compiler: 'auto': if there are any; "
        "true: or fail; false: scripts.",
    )
    memory: Quantity = Field(
        1 << 30,
        description="What the daemon itself may have resident, plugins in threads included. One that has more ends in "
        "order, for systemd to start it again.",
    )
    plugin_user: PluginUser = Field(
        OWN_USER,
        description="User of the processes of plugins whose sections name none: 'own': each has its own, without "
        "rights; or for all of them a name or number, such as 'root'.",
    )
    cgroups: bool | Literal["auto"] = Field(
        "auto",
        description="Limit `memory` and `tasks` of sections in the daemon's cgroup, if that is its own: 'auto': if "
        "systemd has delegated it; true: it is, as in a container of its own; false: it is not.",
    )
    program_cgroup: Annotated[str, AfterValidator(_check_cgroup)] = Field(
        "",
        description="Cgroup, from the root of the hierarchies on, of programs that plugins start for containers, such "
        "as FUSE and MPS servers: in a pod, whose own cgroup ends with it. Empty: the daemon's own.",
    )
    listen: Annotated[str, AfterValidator(_check_address)] = Field(
        "127.0.0.1:9808", description="Address of /healthz, /readyz and /metrics; empty switches them off."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="What the log shows.")
    log_format: Literal["text", "json"] = Field("text", description="One line per record, for people or machines.")
    cni_concurrency: int = Field(
        16,
        ge=1,
        le=1024,
        description="CNI calls that run at once; DEL goes before ADD, and one plugin never takes all.",
    )
    cni_waiting: int = Field(512, ge=1, description="CNI calls that may wait; one more is told to try again.")
    cni_cache_dirs: tuple[Path, ...] = Field(
        (Path("/var/lib/cni/results"),),
        description="Where libcni keeps the results of ADD for runtimes: what it knows and whose namespace is gone is "
        "ended; none: nobody looks.",
    )
    cni_reconcile: Seconds = Field(300.0, description="How often the daemon looks there, after its start.")

    def below_root(self, path: Path) -> Path:
        """Return a configured path below `root`."""
        return self.root.absolute() / str(path).lstrip("/")

    @property
    def paths(self) -> "Paths":
        """Return every path that the daemon uses, below `root`."""
        state, run = self.below_root(self.state_dir), self.below_root(self.run_dir)
        return Paths(
            exec_socket=self.below_root(self.exec_socket),
            state=state,
            run=run,
            journal=state / "journal",
            spool=state / "spool",
            attachments=run / "attachments",
            cni_bin=self.below_root(self.cni_bin_dir),
            cni_conf=self.below_root(self.cni_conf_dir),
            cni_caches=tuple(map(self.below_root, self.cni_cache_dirs)),
            flexvolume=self.below_root(self.flexvolume_dir),
            device_plugins=self.below_root(self.device_plugins_dir),
            plugins_registry=self.below_root(self.plugins_registry_dir),
            podresources_socket=self.below_root(self.podresources_socket),
            root=self.root.absolute(),
        )


@dataclass(frozen=True, slots=True)
class Paths:
    """Where things are on this node, absolute, `root` included."""

    exec_socket: Path
    state: Path
    run: Path
    journal: Path
    spool: Path
    attachments: Path
    cni_bin: Path
    cni_conf: Path
    cni_caches: tuple[Path, ...]
    flexvolume: Path
    device_plugins: Path
    plugins_registry: Path
    podresources_socket: Path
    root: Path = Path("/")


class PluginSection(_Model):
    """`[plugins.<name>]`: its presence enables a plugin."""

    uses: str = Field("", description="Entry-point name or `module:Class`; empty: the section's own name.")
    enabled: bool = Field(True, description="False keeps the section without the plugin.")
    node_selector: Mapping[str, str] = Field(
        default_factory=dict,
        description="Labels that a node must have for the section to be in force there, as a pod's nodeSelector; "
        "they are those of its Node object.",
    )
    node_names: tuple[str, ...] = Field(
        (), description="Patterns of node names, such as 'gpu-*', of which one must fit; empty: all nodes."
    )
    serve: Literal["device-plugin", "dra"] = Field(
        "device-plugin",
        description="How the cluster gets its devices: 'device-plugin': kubelet allocates extended resources; 'dra': "
        "the scheduler allocates claims of resource.k8s.io; see `[dra]`.",
    )
    isolation: Literal["thread", "process"] | None = Field(
        None,
        description="'process': in a process of its own; 'thread': in the daemon; default: as the plugin's class asks, "
        "and a process if it does not.",
    )
    python: Annotated[str, AfterValidator(_check_path)] = Field(
        "",
        description="Python of the plugin's process, such as '/opt/venvs/acme/bin/python': it has the packages of that "
        "environment alone; empty: the daemon's.",
    )
    user: User = Field(
        "",
        description="User of the plugin's process, by name or number, such as 'root'; its own folders belong to it; "
        "empty: `plugin_user` of [supervisor].",
    )
    group: Group = Field("", description="Group of that process; empty: the user's own. It has no other group.")
    capabilities: tuple[Capability, ...] | None = Field(
        None,
        description="All that the process and its children may do as root would, such as 'CAP_NET_ADMIN'; default: "
        "everything as root, nothing as another user.",
    )
    nice: int | None = Field(None, ge=-20, le=19, description="Priority of the process; default: the daemon's.")
    memory: Quantity | None = Field(
        None,
        description="What the process and its children may have in memory, such as '128Mi'; what has more is started "
        "again. Without a cgroup children do not count. Default: 1Gi without its children.",
    )
    tasks: int | None = Field(
        None,
        ge=1,
        description="Processes and threads that it may have. Without a cgroup its `user` has them in all sections, and "
        "needs to be named.",
    )
    restart_after_overdue: int = Field(
        4,
        ge=1,
        description="Overdue calls at which a plugin's process is ended and started again; a call counts once more "
        "each time that it has taken another deadline.",
    )
    deadline: Mapping[str, Seconds] = Field(default_factory=dict, description="Per hook, such as cni_add = '30s'.")
    config: Mapping[str, Any] = Field(default_factory=dict, description="Validated by the plugin's own Config.")

    @model_validator(mode="after")
    def _check_privileges(self) -> Self:
        _ = self.privileges
        return self

    @property
    def privileges(self) -> Privileges:
        """Look up what its process runs with; raise ValueError if its user or group is gone meanwhile."""
        return self.as_user(self.user, self.group)

    def as_user(self, user: str, group: str) -> Privileges:
        """Look up what its process runs with as a user; raise ValueError if there is no such user or group."""
        return Privileges.of(user, group, self.capabilities, self.nice, self.tasks)


class ProvisionerSection(_Model):
    """`[provisioner]`: its presence lets this node's CSI drivers create volumes for claims of the cluster."""

    enabled: bool = Field(True, description="False keeps the section without a provisioner.")
    kubeconfig: Path | None = Field(None, description=_KUBECONFIG)
    drivers: tuple[str, ...] = Field(
        (), description="CSI drivers to provision for, such as 'loopfile.nodeplug'; empty: all that create volumes."
    )
    namespace: str = Field(
        "kube-system", min_length=1, description="Of the CSIStorageCapacity objects that say how much room there is."
    )
    capacity_poll: Seconds = Field(60.0, description="How often that is measured, besides after each change.")


class ExtenderSection(_Model):
    """`[extender]`: its presence serves the scheduler extenders of plugins to kube-scheduler."""

    enabled: bool = Field(True, description="False keeps the section, and nothing listens.")
    listen: Annotated[str, AfterValidator(_check_address)] = Field(
        "127.0.0.1:9810",
        min_length=1,
        description="Address with which a `urlPrefix` of kube-scheduler begins. One that other machines reach needs "
        "TLS and `client_ca`: whoever asks may have pods bound.",
    )
    tls_cert: Annotated[str, AfterValidator(_check_path)] = Field(
        "",
        description="File of the certificate with its chain, for `enableHTTPS: true`; read again when it changes. "
        "Empty: no TLS.",
    )
    tls_key: Annotated[str, AfterValidator(_check_path)] = Field(
        "", description="File of its private key, without a password."
    )
    client_ca: Annotated[str, AfterValidator(_check_path)] = Field(
        "",
        description="File of the authorities of which one must have signed the scheduler's certificate; empty: anybody "
        "may ask.",
    )
    max_body: Quantity = Field(
        32 << 20, description="The largest request; with `nodeCacheCapable: false` a node has 10 to 30 KB."
    )
    concurrency: int = Field(16, ge=1, le=1024, description="Calls that run at once; others wait.")
    follow: bool = Field(
        False,
        description="Follow the cluster's nodes, and pods that are bound and do not run yet, for `nodeCacheCapable: "
        "true` and for plugins that bind.",
    )
    kubeconfig: Path | None = Field(None, description=_KUBECONFIG)

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key go together; give both, or none for plain HTTP")
        if self.client_ca and not self.tls_cert:
            raise ValueError("client_ca needs TLS; give tls_cert and tls_key, too")
        host = parse_address(self.listen)[0]
        if not (self.client_ca or host == "localhost" or host.startswith("127.") or host == "::1"):
            raise ValueError(
                f"listen = {self.listen!r} is reached by others, and whoever asks may have pods bound; give tls_cert, "
                "tls_key and client_ca, or listen on 127.0.0.1, where a kube-scheduler with hostNetwork reaches it"
            )
        return self


class NetworksSection(_Model):
    """`[networks]`: its presence lets the daemon ask the API server which networks there are, and which pods want."""

    enabled: bool = Field(True, description="False keeps the section without anybody asking.")
    kubeconfig: Path | None = Field(None, description=_KUBECONFIG)
    patience: Seconds = Field(
        10.0, description="How long an ADD waits for what the API server has to say, before it fails with code 11."
    )
    objects: bool = Field(
        True,
        description="Follow objects `Network`, too, for which the cluster needs their CustomResourceDefinition.",
    )


Part = Literal["labels", "annotations", "conditions", "events", "pods", "config-maps"]
"""What can be published."""


class ClusterSection(_Model):
    """`[cluster]`: its presence lets the daemon say in the cluster's objects what this node has and lacks."""

    enabled: bool = Field(True, description="False keeps the section, and nothing is published.")
    kubeconfig: Path | None = Field(None, description=_KUBECONFIG)
    publish: tuple[Part, ...] = Field(
        ("labels", "annotations", "conditions", "events", "pods", "config-maps"),
        description="What: labels, annotations and conditions of the Node, events, annotations of pods, and ConfigMaps "
        "about the node.",
    )
    resync: Seconds = Field(300.0, description="How often it is looked whether the Node still has what was published.")


class DraSection(_Model):
    """`[dra]`: how sections with `serve = "dra"` offer their devices to the cluster."""

    kubeconfig: Path | None = Field(None, description=_KUBECONFIG)
    cdi_dir: Path = Field(
        Path("/var/run/cdi"), description="Where the runtime reads CDI specs: there is one for each prepared claim."
    )
    taint: Literal["NoSchedule", "NoExecute", "None"] = Field(
        "NoSchedule",
        description="What an unhealthy device does: 'NoSchedule': it gets no new claims; 'NoExecute': pods that have "
        "it are evicted, too; 'None': it is told, and nothing else.",
    )
    order: Literal["listed", "most-free-first"] = Field(
        "listed",
        description="In which order the scheduler tries devices: 'listed': as the plugin lists them, which fills one "
        "after another; 'most-free-first': spreads claims over devices with parts.",
    )


class Configuration(_Model):
    """The whole file."""

    version: Literal[1]
    supervisor: Supervisor = Supervisor()
    provisioner: ProvisionerSection | None = None
    extender: ExtenderSection | None = None
    networks: NetworksSection | None = None
    cluster: ClusterSection | None = None
    dra: DraSection | None = None
    plugins: Mapping[str, PluginSection] = Field(default_factory=dict)

    def serving(self, front: Literal["device-plugin", "dra"]) -> list[str]:
        """Return the enabled sections whose devices are served so."""
        return [name for name, one in self.plugins.items() if one.enabled and one.serve == front]

    @property
    def kubeconfig(self) -> Path | None:
        """The file under `[supervisor]`, or else the provisioner's."""
        named = self.supervisor.kubeconfig
        return Path(named) if named else self.provisioner.kubeconfig if self.provisioner is not None else None


def node_name(supervisor: Supervisor) -> str:
    """Return the configured node name; or `$NODE_NAME`, which a pod gets from its own fields; or the host's name."""
    return supervisor.node_name or os.environ.get("NODE_NAME") or os.uname().nodename
