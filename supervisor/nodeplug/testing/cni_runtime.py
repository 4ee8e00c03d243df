"""A CNI runtime for tests and demonstrations: what libcni does with a network list, on real executables.

Owns: building each plugin's configuration, the six variables, the order of the list, the result cache, and reading
answers and errors as libcni does. No runtime that distributions package calls CHECK, STATUS or GC; this one does.
Refuses: making containers and namespaces; give it the path of a namespace.
"""

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_VERSIONS: Final = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
_TIMEOUT: Final = 120.0
_INTERNAL: Final = 999


class CniError(Exception):
    """A plugin failed.

    Attributes:
        code: the error's code (CNI SPEC, "Error"); 999 when the plugin's answer could not be read.
        msg: its message.
        details: its details, or empty.
        plugin: the `type` of the plugin.
        verb: what it was asked.
    """

    def __init__(self, plugin: str, verb: str, code: int, msg: str, details: str = "") -> None:
        super().__init__(
            f"plugin type={plugin!r} failed ({verb.lower()}): code {code}: {msg}{'; ' if details else ''}{details}"
        )
        self.plugin = plugin
        self.verb = verb
        self.code = code
        self.msg = msg
        self.details = details


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of a plugin, kept for assertions.

    Attributes:
        plugin: its `type`.
        verb: CNI_COMMAND.
        config: what it read, decoded.
        status: its exit status; negative for a signal.
        stdout: what it printed.
        stderr: what it logged.
    """

    plugin: str
    verb: str
    config: Mapping[str, Any]
    status: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class _Cached:
    container_id: str
    ifname: str
    netns: str
    result: Mapping[str, Any]
    args: str
    capability_args: Mapping[str, Any]


@dataclass(slots=True)
class CniRuntime:
    """One network list and its attachments.

    Attributes:
        conflist: the network list, decoded; see `load`.
        path: the folders of CNI_PATH.
        env: more variables for the plugins; PATH is always given.
        executions: everything that was executed, oldest first.
    """

    conflist: Mapping[str, Any]
    path: Sequence[Path | str]
    env: Mapping[str, str] = field(default_factory=dict)
    executions: list[Execution] = field(default_factory=list)
    _cache: dict[tuple[str, str], _Cached] = field(default_factory=dict)

    @classmethod
    def load(cls, file: Path, path: Sequence[Path | str], env: Mapping[str, str] | None = None) -> "CniRuntime":
        """Read a `.conflist`, or a single `.conf`, which becomes a list of one.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is not JSON.
        """
        document = json.loads(file.read_bytes())
        if "plugins" not in document:
            document = {"name": document["name"], "cniVersion": document.get("cniVersion", ""), "plugins": [document]}
        return cls(document, path, env or {})

    @property
    def network(self) -> str:
        """The name of the network."""
        return str(self.conflist["name"])

    @property
    def version(self) -> str:
        """The version of the list: the highest known one of `cniVersions`, or `cniVersion`."""
        known = [version for version in self.conflist.get("cniVersions", ()) if version in _VERSIONS]
        return str(max(known, key=_VERSIONS.index) if known else self.conflist.get("cniVersion") or _VERSIONS[0])

    @property
    def attachments(self) -> tuple[tuple[str, str], ...]:
        """The cached attachments, as (container id, interface)."""
        return tuple(self._cache)

    def add(
        self,
        container_id: str,
        netns: Path | str,
        ifname: str = "eth0",
        *,
        args: str = "",
        capability_args: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Attach a container: ADD of each plugin in order, each with the result of the one before.

        Args:
            container_id: up to the runtime; letters, digits, `_`, `.`, `-`.
            netns: the path of the container's network namespace.
            ifname: the interface to make.
            args: CNI_ARGS.
            capability_args: by capability; each reaches the plugins that declare it, as `runtimeConfig`.

        Returns:
            The final result, decoded. It is cached for CHECK, DEL and GC.

        Raises:
            CniError: of the first plugin that fails. The runtime must DEL then, as after a success.
        """
        target = _Cached(container_id, ifname, str(netns), {}, args, capability_args or {})
        result: dict[str, Any] = {}
        for plugin in self.conflist["plugins"]:
            config = self._config(plugin, result or None, target.capability_args)
            result = self._result(plugin, self._execute(plugin, "ADD", config, target))
        self._cache[container_id, ifname] = _Cached(
            container_id, ifname, str(netns), result, args, target.capability_args
        )
        return result

    def delete(
        self,
        container_id: str,
        netns: Path | str | None = None,
        ifname: str = "eth0",
        *,
        args: str = "",
        capability_args: Mapping[str, Any] | None = None,
    ) -> None:
        """Detach a container: DEL of each plugin in reverse order, with the cached result from version 0.4.0 on.

        Args:
            container_id: as in `add`.
            netns: None when the namespace is gone; the variable is empty then.
            ifname: as in `add`.
            args: CNI_ARGS; those of `add` when cached.
            capability_args: those of `add` when cached.

        Raises:
            CniError: of the first plugin that fails; the plugins before it in the list are not called.
        """
        cached = self._cache.get((container_id, ifname))
        if cached is None:
            cached = _Cached(container_id, ifname, "", {}, args, capability_args or {})
        target = _Cached(container_id, ifname, str(netns or ""), cached.result, cached.args, cached.capability_args)
        previous = (target.result or None) if self._at_least("0.4.0") else None
        for plugin in reversed(self.conflist["plugins"]):
            self._execute(plugin, "DEL", self._config(plugin, previous, target.capability_args), target)
        self._cache.pop((container_id, ifname), None)

    def delete_all(self) -> None:
        """Detach every cached attachment from its container, as at the end of all pods.

        Raises:
            CniError: of the first plugin that fails.
        """
        for (container_id, ifname), cached in reversed(list(self._cache.items())):
            self.delete(container_id, cached.netns, ifname)

    def check(self, container_id: str, ifname: str = "eth0") -> None:
        """Check a cached attachment: CHECK of each plugin in order, with the final result.

        Raises:
            CniError: of the first plugin that fails, or because the list is older than 0.4.0.
            KeyError: the attachment is not cached.
        """
        target = self._cache[container_id, ifname]
        if not self._at_least("0.4.0"):
            raise CniError("", "CHECK", 1, f"configuration version {self.version!r} does not support CHECK command")
        if self.conflist.get("disableCheck"):
            return
        for plugin in self.conflist["plugins"]:
            self._execute(plugin, "CHECK", self._config(plugin, target.result, target.capability_args), target)

    def status(self) -> None:
        """Ask each plugin for STATUS, in order; nothing happens before version 1.1.0.

        Raises:
            CniError: of the first plugin that is not ready.
        """
        if self._at_least("1.1.0"):
            for plugin in self.conflist["plugins"]:
                self._execute(plugin, "STATUS", self._config(plugin, None, {}), None)

    def gc(self, valid: Iterable[tuple[str, str]] | None = (), *, silent: bool = False) -> None:
        """Collect: DEL each cached attachment that is not valid, then send GC from version 1.1.0 on.

        Args:
            valid: (container id, interface) of what is still attached; None sends `null`, as some runtimes do when
                nothing is attached.
            silent: send neither key, as `cnitool gc` does.

        Raises:
            CniError: of the first plugin that fails; all are called.
        """
        if self.conflist.get("disableGC"):
            return
        kept = list(valid or ())
        for container_id, ifname in [key for key in self._cache if key not in kept]:
            self.delete(container_id, self._cache[container_id, ifname].netns, ifname)
        if not self._at_least("1.1.0"):
            return
        entries = None if valid is None else [{"containerID": one, "ifname": other} for one, other in kept]
        said = {} if silent else {"cni.dev/valid-attachments": entries, "cni.dev/attachments": entries}
        errors = []
        for plugin in self.conflist["plugins"]:
            try:
                self._execute(plugin, "GC", {**self._config(plugin, None, {}), **said}, None)
            except CniError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def versions(self) -> dict[str, tuple[str, ...]]:
        """Ask each plugin which versions it serves.

        Returns:
            By `type`, what it answers as supportedVersions.

        Raises:
            CniError: a plugin fails, or its answer cannot be read.
        """
        found = {}
        for plugin in self.conflist["plugins"]:
            target = _Cached("", "dummy", "dummy", {}, "", {})
            stdout = self._execute(plugin, "VERSION", {"cniVersion": self.version}, target)
            found[plugin["type"]] = tuple(json.loads(stdout)["supportedVersions"])
        return found

    def _at_least(self, version: str) -> bool:
        return _VERSIONS.index(self.version) >= _VERSIONS.index(version)

    def _config(
        self, plugin: Mapping[str, Any], previous: Mapping[str, Any] | None, capability_args: Mapping[str, Any]
    ) -> dict[str, Any]:
        config = {**plugin, "name": self.network, "cniVersion": self.version}
        declared = plugin.get("capabilities", {})
        runtime = {key: value for key, value in capability_args.items() if declared.get(key)}
        if runtime:
            config["runtimeConfig"] = runtime
        if previous is not None:
            config["prevResult"] = previous
        return config

    def _execute(
        self, plugin: Mapping[str, Any], verb: str, config: Mapping[str, Any], target: _Cached | None
    ) -> bytes:
        name = str(plugin["type"])
        done = subprocess.run(
            [str(self._find(name, verb))],
            input=json.dumps(config).encode(),
            capture_output=True,
            env=self._environment(verb, target),
            timeout=_TIMEOUT,
            check=False,
        )
        self.executions.append(Execution(name, verb, config, done.returncode, done.stdout, done.stderr))
        if done.returncode != 0:
            raise _failure(name, verb, done)
        return done.stdout

    def _environment(self, verb: str, target: _Cached | None) -> dict[str, str]:
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            **self.env,
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": target.container_id if target else "",
            "CNI_NETNS": target.netns if target else "",
            "CNI_IFNAME": target.ifname if target else "",
            "CNI_ARGS": target.args if target else "",
            "CNI_PATH": "dummy" if verb == "VERSION" else ":".join(map(str, self.path)),
        }

    def _find(self, name: str, verb: str) -> Path:
        for folder in self.path:
            if (Path(folder) / name).is_file():
                return Path(folder) / name
        listed = " ".join(map(str, self.path))
        raise CniError(name, verb, _INTERNAL, f'failed to find plugin "{name}" in path [{listed}]')

    def _result(self, plugin: Mapping[str, Any], stdout: bytes) -> dict[str, Any]:
        try:
            document = json.loads(stdout)
        except ValueError as error:
            raise CniError(plugin["type"], "ADD", _INTERNAL, f"failed to unmarshal raw result: {error}") from None
        return {"cniVersion": self.version, **(document or {})}


def _failure(name: str, verb: str, done: "subprocess.CompletedProcess[bytes]") -> CniError:
    stdout, stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if not stdout:
        text = f'netplugin failed: "{stderr}"' if stderr else "netplugin failed with no error message"
        return CniError(name, verb, _INTERNAL, f"{text}: exit status {done.returncode}")
    try:
        document = json.loads(stdout)
        return CniError(name, verb, document.get("code", 0), document.get("msg", ""), document.get("details", ""))
    except (ValueError, AttributeError) as error:
        text = f'netplugin failed but error parsing its diagnostic message "{stdout}": {error}'
        return CniError(name, verb, _INTERNAL, text)
