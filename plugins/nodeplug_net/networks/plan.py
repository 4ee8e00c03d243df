"""What an attachment consists of: which networks, by which configuration, under which names.

Owns: the networks of one pod as a plan that is complete before anything is attached, and its form in a record.
Refuses: to attach (`chain`), and the annotation's text (`selection`).
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from typing import Any, Final

from nodeplug import CniAdd, CniRequest, Host, InvalidRequest, NotFound, NotSupported, PluginError, read_bounded
from nodeplug_net.networks.config import NetworksConf
from nodeplug_net.networks.selection import DEFAULT, NETWORKS, Selection, parse_networks

_NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")
"""CNI specification, "Network configuration format"."""
_RESOURCE: Final = "k8s.v1.cni.cncf.io/resourceName"
_FILES: Final = (".conflist", ".conf", ".json")
MOST_NETWORKS: Final = 128
"""Limit of networks of one pod besides its default network: each takes an address of a pool that other pods share."""
_LARGEST: Final = 4 << 20
Conflist = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Planned:
    """One interface.

    Attributes:
        network: `namespace/name` of a NetworkAttachmentDefinition, or the name of a configuration.
        ifname: in the pod.
        conflist: with `name`, `cniVersion` and `plugins`.
        runtime: capability arguments.
        cni_args: for `args.cni`.
        gateways: through which all further traffic goes.
        held: the object `Network` whose configuration this is; empty if it is none's.
    """

    network: str
    ifname: str
    conflist: Conflist
    runtime: Mapping[str, Any] = field(default_factory=dict)
    cni_args: Mapping[str, Any] = field(default_factory=dict)
    gateways: tuple[str, ...] = ()
    held: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as a record has it."""
        return {one.name: getattr(self, one.name) for one in fields(self)}  # `asdict` recurses, and fails for deep JSON

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Planned":
        """Read it from a record."""
        return cls(**{**found, "gateways": tuple(found["gateways"])})


@dataclass(frozen=True, slots=True)
class Found:
    """A configuration, and the object `Network` that it comes from, if it does."""

    conflist: Conflist
    held: str = ""


@dataclass(frozen=True, slots=True)
class Planner:
    """Makes plans.

    Attributes:
        host: of the plugin.
        names: of the plugin itself, which no network may name.
        folder: of configurations.
    """

    host: Host
    names: Collection[str]
    folder: Path

    def plan(
        self, request: CniAdd, conf: NetworksConf, annotations: Mapping[str, str], namespace: str
    ) -> list[Planned]:
        """Return what a pod gets, its default network first.

        Args:
            request: of the runtime.
            conf: of the network.
            annotations: of the pod.
            namespace: of the pod.

        Raises:
            InvalidRequest: an annotation or a configuration is wrong, or two interfaces have one name.
            NotFound: there is no such network.
            TryAgain: a network cannot be read now.
        """
        chosen = annotations.get(DEFAULT, "").strip()
        first = self._chosen(chosen, request, conf) if chosen else self._default(request, conf)
        plans, taken = [first], {request.ifname}
        selections = [*self._everywhere(conf, namespace), *parse_networks(annotations.get(NETWORKS, ""), namespace)]
        if len(selections) > MOST_NETWORKS:
            raise InvalidRequest(
                f"the pod wants {len(selections)} networks; a pod gets at most {MOST_NETWORKS}: remove some from "
                f"annotation {NETWORKS}"
            )
        wanted = {one.interface for one in selections if one.interface}
        numbers = (name for number in count(1) if (name := f"net{number}") not in wanted | taken)
        for position, selection in enumerate(selections, 1):
            self._check_namespace(selection, conf, namespace)
            # multus counts positions: the second network is net2 whatever the first is called.
            name = selection.interface or (
                f"net{position}" if f"net{position}" not in wanted | taken else next(numbers)
            )
            if name in taken:
                raise InvalidRequest(f"network {selection.network}: another one has interface {name!r}; choose another")
            taken.add(name)
            plans.append(self._planned(selection, name, conf))
        return plans

    def default(self, request: CniRequest, conf: NetworksConf) -> Conflist:
        """Return the configuration of the default network."""
        return self._found_default(request, conf).conflist

    def _default(self, request: CniAdd, conf: NetworksConf) -> Planned:
        found = self._found_default(request, conf)
        return Planned(str(found.conflist["name"]), request.ifname, found.conflist, conf.runtime, held=found.held)

    def _found_default(self, request: CniRequest, conf: NetworksConf) -> Found:
        if conf.delegates:
            return Found(self._checked(conf.delegates[0], str(request.config.get("name", "")), "key 'delegates[0]'"))
        name = conf.cluster_network
        if name.startswith("/"):
            return Found(self._checked(_read(Path(name)), Path(name).stem, name))
        # The node's own first: a pod without annotations must not wait for an API server.
        if "/" not in name and (found := self._on_node(name, conf)) is not None:
            return found
        (selection,) = parse_networks(name, conf.multus_namespace, "clusterNetwork")
        try:
            return self._defined(selection, conf)
        except NotFound as error:
            folder = conf.conf_dir or self.folder
            raise NotFound(f"clusterNetwork: {folder} has no configuration {name!r}, and {error.message}") from None

    def _chosen(self, text: str, request: CniAdd, conf: NetworksConf) -> Planned:
        selections = parse_networks(text, conf.multus_namespace, DEFAULT)
        if len(selections) != 1:
            raise InvalidRequest(
                f"annotation {DEFAULT} names {len(selections)} networks; a pod has one default network"
            )
        planned = self._planned(selections[0], request.ifname, conf)
        return replace(planned, runtime={**conf.runtime, **planned.runtime})

    def _everywhere(self, conf: NetworksConf, namespace: str) -> list[Selection]:
        if namespace in conf.system_namespaces:
            return []
        return [
            one
            for name in conf.default_networks
            for one in parse_networks(name, conf.multus_namespace, "defaultNetworks")
        ]

    def _check_namespace(self, selection: Selection, conf: NetworksConf, namespace: str) -> None:
        everyones = {one.strip() for one in conf.global_namespaces.split(",")} | {conf.multus_namespace}
        if conf.namespace_isolation and selection.namespace not in everyones | {namespace}:
            raise InvalidRequest(
                f"network {selection.network} is in another namespace than the pod, which is in {namespace}; "
                "namespaceIsolation forbids that here"
            )

    def _planned(self, selection: Selection, ifname: str, conf: NetworksConf) -> Planned:
        found = self._defined(selection, conf)
        served = {key for one in found.conflist["plugins"] for key, on in _capabilities(one).items() if on}
        for key in selection.runtime:
            if key not in served:
                raise InvalidRequest(
                    f"the pod asks network {selection.network} for {key}, and none of its plugins has "
                    f'"capabilities": {{"{key}": true}}; add it to the network, or take {key} from the annotation'
                )
        return Planned(
            selection.network,
            ifname,
            found.conflist,
            selection.runtime,
            selection.cni_args,
            tuple(map(str, selection.gateways)),
            found.held,
        )

    def _defined(self, selection: Selection, conf: NetworksConf) -> Found:
        definition = self.host.networks.definition(selection.namespace, selection.name)
        about = f"NetworkAttachmentDefinition {selection.network}"
        if _RESOURCE in definition.annotations:
            raise NotSupported(f"{about} has {_RESOURCE}: devices for networks are not supported")
        if not definition.config.strip():
            found = self._on_node(selection.name, conf)
            if found is None:
                raise NotFound(f"{about} has no spec.config, and the node has no configuration {selection.name!r}")
            return found
        try:
            document = json.loads(definition.config)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"spec.config of {about} is no JSON: {error}") from None
        return Found(self._checked(document, selection.name, f"spec.config of {about}"))

    def _on_node(self, name: str, conf: NetworksConf) -> Found | None:
        """Find a configuration on the node: of an object `Network`, or in the folder."""
        conflist = self.host.networks.conflist(name)
        if conflist is not None:
            return Found(self._checked(conflist, name, f"network {name}"), held=name)
        for path in _files(Path(conf.conf_dir) if conf.conf_dir else self.folder):
            try:
                document = _read(path)
            except PluginError:
                continue  # it is somebody else's
            if isinstance(document, dict) and document.get("name") == name:
                return Found(self._checked(document, name, str(path)))
        return None

    def _checked(self, document: Any, name: str, where: str) -> Conflist:
        """Return a configuration as a list that can be run."""
        if not isinstance(document, Mapping):
            raise InvalidRequest(f"{where} must be an object")
        plugins = document.get("plugins") if "plugins" in document else [document]
        if not isinstance(plugins, list) or not plugins:
            raise InvalidRequest(f"{where}: plugins must be a list with at least one")
        for one in plugins:
            kind = one.get("type") if isinstance(one, Mapping) else None
            if not isinstance(kind, str) or not kind:
                raise InvalidRequest(f"{where} has a plugin without a type")
            ipam = one.get("ipam")
            kinds = [kind, str(ipam.get("type", ""))] if isinstance(ipam, Mapping) else [kind]
            if slashed := next((each for each in kinds if "/" in each), ""):  # refused here, it needs no DEL
                raise InvalidRequest(f"{where} names {slashed!r}; a plugin is named by its file, without a folder")
        for kind in set(_types(plugins)) & set(self.names):
            raise InvalidRequest(f"{where} names {kind!r}, which would look for it again; name another plugin")
        own = {key: document[key] for key in ("disableCheck", "disableGC") if key in document}
        version, name = str(document.get("cniVersion") or "0.1.0"), str(document.get("name") or name)
        if not _NAME.fullmatch(name):
            raise InvalidRequest(f"{where} has the name {name!r}; use letters, digits, '-', '_' and '.'")
        return {"name": name, "cniVersion": version, **own, "plugins": plugins}


def _types(value: Any) -> Iterator[str]:
    """Yield the value of each key `type` at any depth: a plugin may delegate to what is below any key."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            waiting += one.values()
            yield from (str(name) for key, name in one.items() if str(key).casefold() == "type")
        elif isinstance(one, list):
            waiting += one


def _capabilities(plugin: Mapping[str, Any]) -> Mapping[str, Any]:
    found = plugin.get("capabilities")
    return found if isinstance(found, Mapping) else {}


def _files(folder: Path) -> Sequence[Path]:
    """Return the configurations of a folder as libcni orders them: lists first."""
    try:
        found = [path for path in folder.iterdir() if path.suffix in _FILES]
    except OSError:
        return ()
    return sorted(found, key=lambda path: (path.suffix != ".conflist", path.name))


def _read(path: Path) -> Any:
    try:
        return json.loads(read_bounded(path, _LARGEST))
    except OSError as error:
        raise NotFound(f"cannot read the configuration {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} is no JSON: {error}") from None


def gateway_of(plans: Sequence[Planned], version: int) -> tuple[Planned, str] | None:
    """Return which interface has the gateway of a version of IP that the pod asks for."""
    return next(_gateways(plans, version), None)


def _gateways(plans: Sequence[Planned], version: int) -> Iterator[tuple[Planned, str]]:
    for one in plans:
        for gateway in one.gateways:
            if ip_address(gateway).version == version:
                yield one, gateway
