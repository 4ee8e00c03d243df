"""The configuration file, as frozen models.

Owns: reading `nodeplug.toml` and its drop-in folder, validation with every problem named at once, and the paths that
follow from `root`.
Refuses: defaults for a plugin's own section (its class validates that) and any look at the node.

The drop-ins (`plugins.d/*.toml` beside the main file unless `drop_in_dir` says otherwise, by name) may hold
`[plugins.*]` tables alone; a plugin that two files define is an error that names both.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from nodeplug.errors import PluginError
from nodeplug.fields import Seconds
from nodeplug.hookspecs import ANSWERS

DEFAULT_PATH: Final = Path("/etc/nodeplug/nodeplug.toml")


class ConfigError(PluginError):
    """The configuration cannot be used; `problems` has one sentence per mistake, each with file and key."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def parse_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`.

    Raises:
        ValueError: it has another form; pydantic adds the key.
    """
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and host != f"[{bare}]"):
        raise ValueError(f"{address!r} is no address; write host:port, such as 127.0.0.1:9808 or [::1]:9808")
    return bare, int(port)


def _check_address(address: str) -> str:
    if address:
        parse_address(address)
    return address


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Supervisor(_Model):
    """`[supervisor]`: the daemon itself. Every path is taken below `root`."""

    root: Path = Field(Path("/"), description="Prefix of every path below; `--root` overrides it.")
    drop_in_dir: str = Field(
        "plugins.d", description="Folder of more [plugins.*] tables, relative to this file; empty: none."
    )
    node_name: str = Field("", description="The node's name in the cluster; empty: the host name.")
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
    device_poll: Seconds = Field(10.0, description="How often every device list is read again.")
    podresources_poll: Seconds = Field(10.0, description="How often kubelet is asked who holds which device.")
    install: bool = Field(False, description="Install the entrypoint scripts of all claims at start and reload.")
    native_entrypoints: bool | Literal["auto"] = Field(
        "auto", description="Compiled entrypoints: 'auto': if the node has a C compiler; true: or fail; false: scripts."
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
            flexvolume=self.below_root(self.flexvolume_dir),
            device_plugins=self.below_root(self.device_plugins_dir),
            plugins_registry=self.below_root(self.plugins_registry_dir),
            podresources_socket=self.below_root(self.podresources_socket),
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
    flexvolume: Path
    device_plugins: Path
    plugins_registry: Path
    podresources_socket: Path


class PluginSection(_Model):
    """`[plugins.<name>]`: its presence enables a plugin."""

    uses: str = Field("", description="Entry-point name or `module:Class`; empty: the section's own name.")
    enabled: bool = Field(True, description="False keeps the section without the plugin.")
    deadline: Mapping[str, Seconds] = Field(default_factory=dict, description="Per hook, such as cni_add = '30s'.")
    config: Mapping[str, Any] = Field(default_factory=dict, description="Validated by the plugin's own Config.")


class Configuration(_Model):
    """The whole file."""

    version: Literal[1]
    supervisor: Supervisor = Supervisor()
    plugins: Mapping[str, PluginSection] = Field(default_factory=dict)


def load(path: Path, root: Path | None = None) -> Configuration:
    """Read the main file and `plugins.d/*.toml` beside it.

    Args:
        path: the main file.
        root: overrides `supervisor.root`.

    Raises:
        ConfigError: with every problem that was found.
    """
    problems: list[str] = []
    document = _read(path, problems, "; `nodeplug check-config --config FILE` names another")
    origins = dict.fromkeys(_tables(document), path)
    for drop_in in _drop_ins(path, document):
        _merge(document, _read(drop_in, problems), drop_in, origins, problems)
    if root is not None and isinstance(document.setdefault("supervisor", {}), dict):
        document["supervisor"]["root"] = root
    return _validate(document, path, origins, problems)


def load_drop_in(path: Path) -> Mapping[str, PluginSection]:
    """Read one file as in `plugins.d` by itself; answer its sections by name, at least one.

    Raises:
        ConfigError: with every problem that was found.
    """
    problems: list[str] = []
    document: dict[str, Any] = {"version": 1}
    origins: dict[str, Path] = {}
    _merge(document, _read(path, problems), path, origins, problems)
    if not origins:
        problems.append(f"{path}: has no [plugins.NAME] table; give a file as in /etc/nodeplug/plugins.d")
    return _validate(document, path, origins, problems).plugins


def _validate(
    document: Mapping[str, Any], path: Path, origins: Mapping[str, Path], problems: list[str]
) -> Configuration:
    try:
        configuration = Configuration.model_validate(document)
    except ValidationError as error:
        problems.extend(_explain(error, path, origins))
        raise ConfigError(problems) from None
    problems.extend(_unknown_hooks(configuration, origins))
    if problems:
        raise ConfigError(problems)
    return configuration


def origins(path: Path) -> Mapping[str, Path]:
    """Return the file that defines each plugin's section.

    Args:
        path: the main file.

    Raises:
        ConfigError: a file cannot be read.
    """
    document = _read(path, [])
    files = [(path, document), *((file, _read(file, [])) for file in _drop_ins(path, document))]
    return {name: file for file, tables in reversed(files) for name in _tables(tables)}


def _read(path: Path, problems: list[str], advice: str = "") -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append(f"{path}: the file does not exist{advice}")
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"{path}: is not TOML: {error}")
    raise ConfigError(problems)


def _drop_ins(path: Path, document: Mapping[str, Any]) -> list[Path]:
    supervisor = document.get("supervisor")
    folder = supervisor.get("drop_in_dir", "plugins.d") if isinstance(supervisor, dict) else "plugins.d"
    return sorted((path.parent / folder).glob("*.toml")) if folder and isinstance(folder, str) else []


def _tables(document: Mapping[str, Any]) -> Mapping[str, Any]:
    plugins = document.get("plugins", {})
    return plugins if isinstance(plugins, dict) else {}


def _merge(
    document: dict[str, Any],
    drop_in: Mapping[str, Any],
    path: Path,
    origins: dict[str, Path],
    problems: list[str],
) -> None:
    problems.extend(
        f"{path}: {key}: a drop-in holds [plugins.*] tables alone; move this key to the main file"
        for key in drop_in.keys() - {"plugins"}
    )
    for name, section in _tables(drop_in).items():
        if name in origins:
            problems.append(f"{path}: plugins.{name}: already defined in {origins[name]}; remove one of the two")
            continue
        origins[name] = path
        document.setdefault("plugins", {})[name] = section


def _origin(location: tuple[Any, ...], path: Path, origins: Mapping[str, Path]) -> Path:
    return origins.get(str(location[1]), path) if len(location) > 1 and location[0] == "plugins" else path


def _explain(error: ValidationError, path: Path, origins: Mapping[str, Path]) -> list[str]:
    lines = []
    for item in error.errors(include_url=False):
        key = ".".join(str(part) for part in item["loc"])
        text = f"{_origin(item['loc'], path, origins)}: {key}: {item['msg']}"
        if item["type"] == "extra_forbidden":
            text = f"{_origin(item['loc'], path, origins)}: {key}: unknown key; allowed: {_allowed(item['loc'])}"
        elif item["loc"] == ("version",) and item["type"] == "missing":
            text = f"{path}: version: missing; the main file begins with `version = 1`; a drop-in is no main file"
        elif item["type"] != "missing":
            text += f" (found {item['input']!r})"
        lines.append(text)
    return lines


def _allowed(location: tuple[Any, ...]) -> str:
    model: type[BaseModel] = Configuration
    if location[0] == "supervisor" and len(location) > 1:
        model = Supervisor
    elif location[0] == "plugins" and len(location) > 2:
        model = PluginSection
    return ", ".join(model.model_fields)


def _unknown_hooks(configuration: Configuration, origins: Mapping[str, Path]) -> list[str]:
    return [
        f"{origins[name]}: plugins.{name}.deadline.{hook}: no such hook; allowed: {', '.join(ANSWERS)}"
        for name, section in configuration.plugins.items()
        for hook in section.deadline
        if hook not in ANSWERS
    ]


def node_name(supervisor: Supervisor) -> str:
    """Return the configured node name, or the host's."""
    return supervisor.node_name or os.uname().nodename
