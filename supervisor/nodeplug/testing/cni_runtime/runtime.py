"""A CNI runtime for tests and demonstrations: what libcni does with a network list, on real executables.

Owns: building each plugin's configuration, the six variables, the order of the list, the verbs of each version, and
what a runtime does for one pod. No packaged runtime calls CHECK, STATUS and GC; this one does.
Refuses: creating containers and namespaces; give it the path of a namespace.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nodeplug.testing.cni_runtime.cache import Attached, ResultCache
from nodeplug.testing.cni_runtime.execution import (
    CniError,
    Execution,
    Patience,
    execute,
    failure,
    find_plugin,
    read_result,
)
from nodeplug.testing.cni_runtime.styles import LIBCNI, RuntimeStyle

_VERSIONS: Final = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
_PATIENCE: Final = Patience()


@dataclass(slots=True)
class CniRuntime:
    """One network list and its attachments.

    Attributes:
        conflist: the network list, decoded; see `load`.
        path: the folders of CNI_PATH.
        env: more variables for the plugins; PATH is always set.
        executions: every execution, oldest first.
        style: the runtime that it acts as; see `attach` and `detach`.
        cache_dir: where libcni's cache files are, such as /var/lib/cni; None keeps them in memory.
        patience: how long it waits for plugins.
    """

    conflist: Mapping[str, Any]
    path: Sequence[Path | str]
    env: Mapping[str, str] = field(default_factory=dict)
    executions: list[Execution] = field(default_factory=list)
    style: RuntimeStyle = LIBCNI
    cache_dir: Path | None = None
    patience: Patience = _PATIENCE
    cache: ResultCache = field(init=False)

    def __post_init__(self) -> None:
        self.cache = ResultCache(self.network, self.cache_dir)

    @classmethod
    def load(
        cls, file: Path, path: Sequence[Path | str], env: Mapping[str, str] | None = None, **more: Any
    ) -> "CniRuntime":
        """Read a `.conflist`, or a single `.conf`, which becomes a list of one.

        The files `<folder>/<network>/*.conf` are appended to a list's plugins unless it says `loadOnlyInlinedPlugins`
        (libcni from 1.3).

        Args:
            file: the file.
            path: the folders of CNI_PATH.
            env: more variables for the plugins.
            more: further attributes of the runtime.

        Raises:
            OSError: a file cannot be read.
            ValueError: one is not JSON, or there is no plugin.
        """
        document = json.loads(file.read_bytes())
        if "type" in document and "plugins" not in document:
            document = {"name": document["name"], "cniVersion": document.get("cniVersion", ""), "plugins": [document]}
        elif not _flag(document, "loadOnlyInlinedPlugins"):
            dropped = sorted((file.parent / str(document["name"])).glob("*.conf"))
            added = [json.loads(one.read_bytes()) for one in dropped]
            document = {**document, "plugins": [*document.get("plugins", ()), *added]}
        if not document.get("plugins"):
            raise ValueError(f"error parsing configuration list {file}: no plugins in list")
        return cls(document, path, env or {}, **more)

    @property
    def network(self) -> str:
        """The name of the network."""
        return str(self.conflist["name"])

    @property
    def version(self) -> str:
        """The version of the list: the highest supported one of `cniVersions`, or `cniVersion`."""
        known = [version for version in self.conflist.get("cniVersions", ()) if version in _VERSIONS]
        return str(max(known, key=_VERSIONS.index) if known else self.conflist.get("cniVersion") or _VERSIONS[0])

    @property
    def attachments(self) -> tuple[tuple[str, str], ...]:
        """The cached attachments, as (container id, interface)."""
        return tuple((one.container_id, one.ifname) for one in self.cache.all())

    # --- what a runtime does for a pod

    def attach(
        self,
        container_id: str,
        netns: Path | str,
        ifname: str = "eth0",
        *,
        args: str = "",
        capability_args: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Start a pod's network as the style has it: ADD, and whatever comes before and after it.

        Returns:
            The final result.

        Raises:
            CniError: of the first plugin that fails. A DEL of the whole list has followed, with the namespace and,
                after a failed ADD, without a result; its own failure is not reported: runtimes only log it.
        """
        if self.style.version_first:
            self.versions()
        try:
            result = self.add(container_id, netns, ifname, args=args, capability_args=capability_args)
            if self.style.check_after_add and self._at_least("0.4.0"):
                self.check(container_id, ifname)
        except CniError:
            with suppress(CniError):
                self.delete(container_id, netns, ifname, args=args, capability_args=capability_args)
            raise
        return result

    def detach(
        self,
        container_id: str,
        netns: Path | str | None = None,
        ifname: str = "eth0",
        *,
        args: str = "",
        capability_args: Mapping[str, Any] | None = None,
    ) -> None:
        """End a pod's network as the style has it: DEL, and for containerd a second one without a namespace.

        Raises:
            CniError: of the first plugin that fails; the pod stays Terminating and all of it is repeated.
        """
        self.delete(container_id, netns, ifname, args=args, capability_args=capability_args)
        if self.style.second_del:
            self.delete(container_id, None, ifname, args=args, capability_args=capability_args)

    # --- verbs

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
            ifname: the interface to create.
            args: CNI_ARGS.
            capability_args: by capability; each reaches the plugins that declare it, as `runtimeConfig`.

        Returns:
            The final result, decoded. It is cached for CHECK, DEL and GC.

        Raises:
            CniError: of the first plugin that fails. The runtime must DEL then, as after a success.
        """
        spelled = self.style.spell(capability_args or {})
        target = Attached(container_id, ifname, str(netns), {}, args, spelled)
        result: dict[str, Any] = {}
        for plugin in self.conflist["plugins"]:
            config = self._config(plugin, result or None, spelled)
            result = read_result(self._execute(plugin, "ADD", config, target), self.version)
        self.cache.put(Attached(container_id, ifname, str(netns), result, args, spelled), self.conflist)
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

        A result that is lost, damaged or of another family of versions is left out.

        Args:
            container_id: as in `add`.
            netns: None when the namespace is gone; the variable is empty then.
            ifname: as in `add`.
            args: CNI_ARGS; those of `add` when cached and not given.
            capability_args: those of `add` when cached and not given.

        Raises:
            CniError: of the first plugin that fails; the plugins before it in the list are not called.
        """
        cached = self.cache.get(container_id, ifname) or Attached(container_id, ifname, "")
        spelled = cached.capability_args if capability_args is None else self.style.spell(capability_args)
        target = Attached(container_id, ifname, str(netns or ""), cached.result, args or cached.args, spelled)
        previous = target.result_in(self.version) if self._at_least("0.4.0") else None
        for plugin in reversed(self.conflist["plugins"]):
            self._execute(plugin, "DEL", self._config(plugin, previous, spelled), target)
        self.cache.drop(container_id, ifname)

    def check(self, container_id: str, ifname: str = "eth0", netns: Path | str | None = None) -> None:
        """Check an attachment: CHECK of each plugin in order, with the final result.

        Args:
            container_id: as in `add`.
            ifname: as in `add`.
            netns: for an attachment whose cache entry is lost: plugins are asked without a result then.

        Raises:
            CniError: of the first plugin that fails, or because the list is older than 0.4.0.
            KeyError: the attachment is not cached, and no namespace is given.
        """
        target = self.cache.get(container_id, ifname)
        if target is None and netns is None:
            raise KeyError((container_id, ifname))
        target = target or Attached(container_id, ifname, str(netns))
        if not self._at_least("0.4.0"):
            raise CniError("", "CHECK", 1, f"configuration version {self.version!r} does not support CHECK command")
        if _flag(self.conflist, "disableCheck"):
            return
        for plugin in self.conflist["plugins"]:
            config = self._config(plugin, target.result_in(self.version), target.capability_args)
            self._execute(plugin, "CHECK", config, target)

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
            CniError: of the first plugin that fails; all are called. Nothing is done, and nothing raised, when the
                cache cannot be read.
        """
        if _flag(self.conflist, "disableGC"):
            return
        kept = list(valid or ())
        try:
            cached = self.cache.all()
        except OSError:
            return
        errors = []
        for one in [one for one in cached if (one.container_id, one.ifname) not in kept]:
            try:
                self.delete(one.container_id, one.netns, one.ifname)
            except CniError as error:
                errors.append(error)
        if self._at_least("1.1.0"):
            errors += self._send_gc({} if silent else self._said(valid, kept))
        if errors:
            raise errors[0]

    def _said(self, valid: Iterable[tuple[str, str]] | None, kept: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Name the valid attachments under the specification's key, and under the one that its first text had."""
        nothing = valid is None or (self.style.null_for_nothing and not kept)
        entries = None if nothing else [{"containerID": one, "ifname": other} for one, other in kept]
        return {"cni.dev/valid-attachments": entries, "cni.dev/attachments": entries}

    def _send_gc(self, said: Mapping[str, Any]) -> list[CniError]:
        errors = []
        for plugin in self.conflist["plugins"]:
            try:
                self._execute(plugin, "GC", {**self._config(plugin, None, {}), **said}, None)
            except CniError as error:
                errors.append(error)
        return errors

    def versions(self) -> dict[str, tuple[str, ...]]:
        """Ask each plugin which versions it supports.

        Returns:
            By `type`, the supportedVersions of its answer.

        Raises:
            CniError: a plugin fails, or its answer cannot be read.
        """
        found = {}
        for plugin in self.conflist["plugins"]:
            target = Attached("", "dummy", "dummy")
            done = self._execute(plugin, "VERSION", {"cniVersion": self.version}, target)
            found[plugin["type"]] = _read_versions(done)
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
        self, plugin: Mapping[str, Any], verb: str, config: Mapping[str, Any], target: Attached | None
    ) -> Execution:
        executable = find_plugin(str(plugin["type"]), verb, self.path)
        done = execute(executable, verb, config, self._environment(verb, target), self.patience)
        self.executions.append(done)
        if done.status != 0:
            raise failure(done)
        return done

    def _environment(self, verb: str, target: Attached | None) -> dict[str, str]:
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            **self.style.env,
            **self.env,
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": target.container_id if target else "",
            "CNI_NETNS": target.netns if target else "",
            "CNI_IFNAME": target.ifname if target else "",
            "CNI_ARGS": target.args if target else "",
            "CNI_PATH": "dummy" if verb == "VERSION" else ":".join(map(str, self.path)),
        }


def _flag(conflist: Mapping[str, Any], key: str) -> bool:
    """Read a boolean of a list; libcni accepts the strings "true" and "false", too, in upper or lower case.

    Raises:
        ValueError: it is something else.
    """
    value = conflist.get(key, False)
    known = {"true": True, "false": False}
    word = str(value).lower()
    if not isinstance(value, str | bool) or word not in known:
        raise ValueError(f"error parsing configuration list: invalid value {value!r} for {key}")
    return known[word]


def _read_versions(done: Execution) -> tuple[str, ...]:
    """Read the answer to VERSION (libcni requires cniVersion, and supportedVersions unless that is 0.2.0).

    Raises:
        CniError: it cannot be read.
    """
    try:
        document = json.loads(done.stdout)
        if document["cniVersion"] == "0.2.0":
            return tuple(document.get("supportedVersions", ("0.1.0", "0.2.0")))
        return tuple(document["supportedVersions"])
    except (ValueError, KeyError, TypeError) as error:
        text = f"decoding version info: {error or type(error).__name__}"
        raise CniError(done.plugin, "VERSION", 999, text) from None
