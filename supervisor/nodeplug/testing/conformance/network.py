"""Containers to attach: sandboxes next to the scratch host, and a runtime that calls the node's executables there.

Owns: the network list that is exercised, container ids, sandboxes, and looks into them that do not rely on the plugin.
Refuses: to judge.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_interface
from pathlib import Path
from typing import Any, Final, TypeVar

from pyroute2 import IPRoute

from nodeplug.testing.cni_runtime import CniError, CniRuntime
from nodeplug.testing.conformance.examination import Examination
from nodeplug.testing.conformance.verdict import Broken, NotApplicable
from nodeplug.testing.sandbox import Sandbox

DEFAULT_VERSION: Final = "1.0.0"
NEWEST: Final = "1.1.0"
T = TypeVar("T")


@dataclass(slots=True)
class Container:
    """A sandbox and its id."""

    id: str
    sandbox: Sandbox

    @property
    def path(self) -> Path:
        """The path of its network namespace."""
        return self.sandbox.path


@dataclass(slots=True)
class Network:
    """The network of one examination.

    Attributes:
        exam: the examination that it belongs to.
        document: the network list.
    """

    exam: Examination
    document: Mapping[str, Any]
    _ids: Iterator[int] = field(default_factory=itertools.count)
    _open: list[Sandbox] = field(default_factory=list)
    _own: CniRuntime | None = None

    @classmethod
    def of(cls, exam: Examination) -> "Network":
        """Return the network of an examination; the first time it starts the node and attaches a container once.

        What a plugin makes for the node, such as a bridge, is there from then on, so that inventories are comparable.

        Raises:
            Broken: the plugin cannot attach a container at all.
        """
        exam.require_passed("add-succeeds")
        if isinstance(exam.network, cls):
            return exam.network
        exam.network = made = cls(exam, _document(exam))
        exam.closing.callback(made.close)
        assert exam.node
        with made.container() as first:
            made.attach(first)
            made.detach(first)
        return made

    def runtime(self, version: str | None = None, *, keys: Mapping[str, Any] | None = None) -> CniRuntime:
        """Return a runtime without attachments.

        Args:
            version: the version of the list instead of its own.
            keys: more keys for the configuration of each plugin.
        """
        document = dict(self.document)
        if version is not None:
            document.pop("cniVersions", None)
            document["cniVersion"] = version
        document["plugins"] = [{**plugin, **(keys or {})} for plugin in document["plugins"]]
        return CniRuntime(document, [self.exam.node.paths.cni_bin])

    @contextmanager
    def container(self) -> Iterator[Container]:
        """Make a container; its namespace is removed at the end of the block."""
        number = next(self._ids)
        sandbox = Sandbox(self.exam.folder / f"c{number}")
        self._open.append(sandbox)
        try:
            yield Container(f"conformance-{number}", sandbox)
        finally:
            if sandbox in self._open:
                self.drop(sandbox)

    def drop(self, sandbox: Sandbox) -> None:
        """End a container's namespace."""
        self._open.remove(sandbox)
        sandbox.close()

    def close(self) -> None:
        """End every namespace that is left."""
        for sandbox in list(self._open):
            self.drop(sandbox)

    def ask(self, what: str, work: Callable[[], T]) -> T:
        """Have the runtime do something on the host.

        Raises:
            Broken: a plugin failed.
        """
        try:
            return self.exam.on_host(work)
        except CniError as error:
            raise Broken(f"{what} failed: {error}") from None

    def attach(self, container: Container, runtime: CniRuntime | None = None, **more: Any) -> dict[str, Any]:
        """ADD.

        Raises:
            Broken: it failed.
        """
        caller = runtime or self._runtime
        return self.ask("ADD", lambda: caller.add(container.id, container.path, **more))

    def detach(self, container: Container, runtime: CniRuntime | None = None, *, netns: bool = True) -> None:
        """DEL, with CNI_NETNS or without.

        Raises:
            Broken: it failed.
        """
        caller = runtime or self._runtime
        self.ask("DEL", lambda: caller.delete(container.id, container.path if netns else None))

    @property
    def _runtime(self) -> CniRuntime:
        if self._own is None:
            self._own = self.runtime()
        return self._own


def _document(exam: Examination) -> Mapping[str, Any]:
    given = exam.subject.cni or {"type": exam.claims["cni"][0]}
    listed = given if "plugins" in given else {"plugins": [given]}
    document = {"cniVersion": DEFAULT_VERSION, "name": "conformance", **listed}
    for key in ("cniVersion", "name"):
        if "plugins" not in given and key in given:
            document[key] = given[key]
    types = {plugin.get("type") for plugin in document["plugins"]}
    if not types & set(exam.claims["cni"]):
        raise NotApplicable(f"the network of this run uses {', '.join(map(str, types))}, none of the plugin's claims")
    return document


# --- looks into containers that do not rely on the plugin


def links_of(exam: Examination, container: Container | None) -> dict[str, str]:
    """Return the links of a container, or of the host, with their hardware addresses."""

    def look() -> dict[str, str]:
        with IPRoute() as route:
            return {link.get_attr("IFLA_IFNAME"): str(link.get_attr("IFLA_ADDRESS")) for link in route.get_links()}

    return _inside(exam, container, look)


def _inside(exam: Examination, container: Container | None, look: Callable[[], T]) -> T:
    if container is None:
        return exam.on_host(look)
    with container.sandbox.netns.entered():
        return look()


def addresses_of(exam: Examination, container: Container | None, name: str) -> list[str]:
    """Return the addresses of a link, with prefix lengths."""

    def look() -> list[str]:
        with IPRoute() as route:
            index = route.link_lookup(ifname=name)[0]
            rows = [(dict(row["attrs"]), row["prefixlen"]) for row in route.get_addr(index=index)]
            own = [(row.get("IFA_LOCAL") or row["IFA_ADDRESS"], length) for row, length in rows]
            return [str(ip_interface(f"{address}/{length}")) for address, length in own]

    return _inside(exam, container, look)


def lose(container: Container, name: str) -> None:
    """Remove a link of a container behind the plugin's back, or set it down if the kernel does not delete it."""
    with container.sandbox.netns.entered(), IPRoute() as route:
        index = route.link_lookup(ifname=name)[0]
        if name == "lo":  # the kernel does not delete it
            route.link("set", index=index, state="down")
        else:
            route.link("del", index=index)
