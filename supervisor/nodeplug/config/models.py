"""The configuration as frozen models.

Owns: the whole file, the keys of the daemon's own table and of every plugin's section, their defaults, and the paths
that follow from `root`.
Refuses: to read files (`nodeplug.config.reading`), the tables about the cluster (`cluster_tables`), and what stands in
a plugin's own table.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from nodeplug.config.cluster_tables import (
    ClusterSection,
    DraSection,
    ExtenderSection,
    NetworksSection,
    ProvisionerSection,
)
from nodeplug.config.keys import Model, check_address, check_cgroup, check_path
from nodeplug.config.privileges import OWN_USER, Capability, Group, PluginUser, Privileges, User
from nodeplug.fields import Quantity, Seconds


class Supervisor(Model):
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
        "order, and at once with half as much again, for systemd to start it again.",
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
    program_cgroup: Annotated[str, AfterValidator(check_cgroup)] = Field(
        "",
        description="Cgroup, from the root of the hierarchies on, of programs that plugins start for containers, such "
        "as FUSE and MPS servers: in a pod, whose own cgroup ends with it. Empty: the daemon's own.",
    )
    listen: Annotated[str, AfterValidator(check_address)] = Field(
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


class PluginSection(Model):
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
    python: Annotated[str, AfterValidator(check_path)] = Field(
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
        "each time that it has taken another deadline. Calls for some networks or volumes do not count while those for "
        "others return.",
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


class Configuration(Model):
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
