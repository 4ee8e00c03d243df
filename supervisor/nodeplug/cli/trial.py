"""`nodeplug try`: serve one plugin to stand-ins, and show its author what they get.

Owns: the steps per style and how each answer is shown.
Refuses: to judge the plugin (`nodeplug verify` has the rules), and stand-ins of its own: see `nodeplug.testing`.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

from nodeplug.cli.group import read_file
from nodeplug.cli.trial_claims import by_claim, counted
from nodeplug.commands import console, toml
from nodeplug.config import PluginSection, load_drop_in
from nodeplug.contract.errors import InvalidRequest, NotReady
from nodeplug.contract.mounts import mounted_at
from nodeplug.contract.values import Pod, Secrets
from nodeplug.fields import write_quantity
from nodeplug.loading.discovery import find
from nodeplug.loading.examination import unmarked
from nodeplug.process.environment import copy_environment
from nodeplug.testing import (
    AdmissionError,
    BlockingKubelet,
    CniError,
    CsiFailure,
    CsiVolume,
    ExtenderFailure,
    FlexFailure,
    FlexVolume,
    Scheduler,
    ScratchNode,
    Unschedulable,
    namespaces,
)
from nodeplug.testing.csi_caller.controller import created
from nodeplug.testing.dra import Pending, PrepareFailed, UnprepareFailed, UnresolvableDevices
from nodeplug.testing.fronts import fronts, served
from nodeplug.testing.isolation import IN_WORDS, Isolation, isolated, isolations
from nodeplug.testing.place_holder import filled
from nodeplug.testing.pods import CniRuntimeFactory, CsiCallers, FlexCallers, url_prefix
from nodeplug.testing.rig import LeftBehind, scratch_node, scratch_of
from nodeplug.testing.scheduler import pod as v1_pod
from nodeplug.testing.secrets_file import read_secrets
from nodeplug.testing.served_volumes import csi_driver, volume_id_at
from nodeplug.volumes.masking import redact

_INSIDE: Final = "NODEPLUG_TRY_INSIDE"
_FAILURES: Final = (
    *(AdmissionError, CniError, CsiFailure, ExtenderFailure, FlexFailure),
    *(LeftBehind, NotReady, TimeoutError, Unschedulable),
    *(Pending, PrepareFailed, UnprepareFailed, UnresolvableDevices),
)
_POD: Final = Pod(name="pod", namespace="default", uid="0001")
_PATIENCE: Final = 7.0
_ENOUGH: Final = 3.0  # seconds; a failing listing is retried many times meanwhile
_RECORD: Final = re.compile(r"^(?=\d{4}-\d\d-\d\dT\S+Z [A-Z]+ )", re.MULTILINE)
_TELLING: Final = re.compile(r"\S+ (WARNING|ERROR|CRITICAL) |\S+ \S+ nodeplug\.plugin\.")
_NUMBERS: Final = re.compile(r"^\S+ |\[[0-9a-f]{8}\b|request [0-9a-f]{8}\b")
_RECORDS: Final = 4
_QUIET: Final = 0.3
_LONGEST: Final = 3.0


@dataclass(frozen=True, slots=True)
class Trial:
    """What to serve, and to whom; defaults come from the plugin's own example.

    Attributes:
        files: TOML with `[plugins.*]` tables. The plugins of the first are tried, the others run beside them.
        network: a conflist.
        options: of the volume.
        secrets: a file with the volume's Secret, see `read_secrets`.
        isolation: how the daemon runs the plugins: thread, process, or both, one after the other; empty: as their
            sections say, and the daemon does by default.
        serve: how the plugins serve devices: device-plugin, dra, or both, one after the other; empty: as their
            sections say.
    """

    files: Sequence[Path]
    network: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    secrets: Path | None = None
    isolation: str = ""
    serve: str = ""

    def run(self) -> int:
        """Serve, call, show and clean up; return the exit status, 1 when a call was refused or something is left.

        Raises:
            PluginError: a file cannot be read, or the plugin cannot be loaded.
        """
        if os.geteuid() != 0 and not os.environ.get(_INSIDE):
            inside = _namespaces()
            if inside:  # then a plugin's mounts and links end with the command
                return subprocess.run(
                    [*inside, sys.executable, "-m", "nodeplug", *sys.argv[1:]],
                    env={**copy_environment(), _INSIDE: "1"},
                    check=False,
                ).returncode
        ways = isolations(self.isolation) if self.isolation else (None,)
        offered = fronts(self.serve) if self.serve else (None,)
        tables = [load_drop_in(path) for path in self.files]
        texts = [read_file(path).decode() for path in self.files]
        asked = {name: self._asked(name, section) for name, section in tables[0].items()}
        screen = _Screen(tuple(Secrets(one.get("secrets", {})) for one in asked.values()))
        given = {name for table in tables for name in table}
        named = {name: more for one in asked.values() for name, more in one.get("beside", {}).items()}
        beside = {name: more for name, more in named.items() if name not in given}
        if beside:
            texts.append(toml({"plugins": beside}))
        try:
            for front, way in product(offered, ways):
                plugins = "\n".join(texts)
                self._try(screen, served(plugins, front, set(asked)) if front is not None else plugins, asked, way)
        except _FAILURES as error:
            screen.line("red", "✗", str(error))
            return 1
        return 0

    def _try(
        self, screen: "_Screen", plugins: str, asked: Mapping[str, Mapping[str, Any]], way: Isolation | None
    ) -> None:
        with scratch_node(isolated(plugins, way, set(asked)) if way is not None else plugins) as node:
            for name, example in asked.items():
                _serve(screen, node, name, filled(example, scratch_of(node.root)), named=way is not None)
        screen.line("green", "✓", "nothing is left: no link, no mount, no nftables object")

    def _asked(self, name: str, section: PluginSection) -> Mapping[str, Any]:
        """Return the plugin's example, with the command line's options in place of its own."""
        if not section.enabled:
            raise InvalidRequest(
                f"plugin {name} is not enabled; remove `enabled = false` from {self.files[0]} to try it"
            )
        asked = dict(getattr(find(section.uses or name).cls, "example", None) or {})
        if self.network is not None:
            asked["cni"] = _network(self.network)
        if self.options:
            asked["volume_options"] = self.options
        if self.secrets is not None:
            asked["secrets"] = read_secrets(self.secrets)
        return asked


class _Screen:
    """Shows everything except secrets, which may occur in a driver's answer or in kubelet's error message."""

    def __init__(self, secrets: Sequence[Secrets]) -> None:
        self._console = console()
        self._secrets = secrets

    def line(self, colour: str, act: str, told: str) -> None:
        for one in self._secrets:
            told = redact(told, one)
        self._console.print(f"[{colour}]{act:7}[/{colour}]", end=" ")
        self._console.print(told, markup=False, soft_wrap=True)


def _serve(screen: _Screen, node: ScratchNode, name: str, example: Mapping[str, Any], *, named: bool) -> None:
    row = next(row for row in node.status()["plugins"] if row["name"] == name)
    if row["state"] != "running":
        raise NotReady(f"plugin {name} is {row['state']}: {row['reason']}")
    styles: Mapping[str, Callable[[ScratchNode, str, Mapping[str, Any]], Iterator[tuple[str, str]]]]
    by_claims = node.configuration.plugins[name].serve == "dra"
    device = by_claim if by_claims else _device
    styles = {"device": device, "cni": _cni, "volume": _volume, "extender": _extender}
    where = f" {IN_WORDS[row['isolation']]}" if named else ""
    screen.line("green", "serve", f"plugin {name}{where} claims {', '.join(row['claims'])}")
    for hook in unmarked(find(row["uses"]).cls):
        screen.line("yellow", "unused", f"{hook} has no @hookimpl: nobody calls it")
    for claim in row["claims"]:
        kind, _, what = claim.partition(":")
        if kind not in styles:  # such as a guard that no other plugin has the same: nobody calls it
            continue
        try:
            for act, told in styles[kind](node, what, example):
                screen.line("green", act, told)
        except _FAILURES:
            screen.line("red", "log", _end_of(_quiet_log(node)))
            raise


def _quiet_log(node: ScratchNode) -> str:
    """Return the daemon's log once `_QUIET` seconds have brought nothing new, after `_LONGEST` seconds at the latest.

    A plugin's process sends its log records and its answers on different sockets, so the daemon may write the records
    of a call that failed after the failure is told.
    """
    latest = time.monotonic() + _LONGEST
    before, log = "", node.log
    while log != before and time.monotonic() < latest:
        time.sleep(_QUIET)
        before, log = log, node.log
    return log


def _end_of(log: str) -> str:
    """Return the last whole records worth reading: warnings, and messages of plugins."""
    telling = [record for record in _RECORD.split(log) if _TELLING.match(record)]
    newest = {_NUMBERS.sub("", record): record for record in telling}  # retries repeat their message
    return "".join(list(newest.values())[-_RECORDS:]).rstrip().replace("\n", "\n        ")


def _cni(node: ScratchNode, claim: str, example: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    document = example.get("cni") or {"type": claim}
    plugins = document.get("plugins", [document])
    version, name = document.get("cniVersion", "1.0.0"), document.get("name", "net")
    with closing(CniRuntimeFactory(node)) as factory:
        runtime = factory({"cniVersion": version, "name": name, "plugins": plugins})
        sandbox = factory.sandbox("pod")
        result = runtime.add("pod", sandbox.path)
        yield "add", f"the runtime attaches a container to network {name} and is told"
        yield "result", json.dumps(result)
        yield "links", f"the container has {', '.join(sandbox.links())}"
        runtime.delete("pod", sandbox.path)
        yield "del", f"detached, it has {', '.join(sandbox.links())}"


def _extender(node: ScratchNode, claim: str, example: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    asked = example.get("extender", {})
    pod, nodes = asked.get("pod") or v1_pod("web"), asked.get("nodes") or ("node-1", "node-2", "node-3")
    served = next(one for one in (node.status()["extender"] or {})["extenders"] if one["name"] == claim)
    # Bindings take an API server.
    verbs, names_alone = [one for one in served["verbs"] if one != "bind"], not isinstance(nodes, Mapping)
    with Scheduler(url_prefix(node, claim), verbs=verbs, node_cache_capable=names_alone) as scheduler:
        left: Sequence[str] = list(nodes)
        if "filter" in verbs:
            verdict = scheduler.filter(pod, nodes)
            left = verdict.nodes
            yield "filter", f"of {', '.join(nodes)} the plugin leaves {', '.join(left) or 'none'}"
            for name, reason in {**verdict.failed, **verdict.unresolvable}.items():
                yield "refused", f"{name}: {reason}"
        if "prioritize" in verbs and left:
            answer = scheduler.prioritize(
                pod, {one: nodes[one] for one in left} if isinstance(nodes, Mapping) else left
            )
            yield "scores", ", ".join(f"{name} +{answer.get(name, 0)}" for name in left)
        if left:
            yield "pod", f"the pod goes to {scheduler.schedule(pod, nodes)}, if the scheduler itself likes all equally"


def _volume(node: ScratchNode, driver: str, example: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    options, secrets = dict(example.get("volume_options", {})), example.get("secrets", {})
    with closing(FlexCallers(node)) as factory:
        kubelet = factory(driver)
        target = kubelet.mount(_POD, FlexVolume("data", options, secrets))
        handle = volume_id_at(node, target)
        yield "mount", f"kubelet mounts {driver} for a pod, options: {json.dumps(options)}"
        yield from _seen_at(target)
        kubelet.unmount(_POD, "data")
        yield "unmount", "the pod is gone"
        attaches = kubelet.capabilities["attach"]
    row = None if attaches else csi_driver(node, driver, _PATIENCE)
    if row is not None:
        volume = CsiVolume("data", options, "" if row["inline"] else handle, secrets)
        yield from _volume_over_csi(node, row["driver"], volume)
        if row["block"]:
            yield from _device_over_csi(node, row["driver"])


def _volume_over_csi(node: ScratchNode, driver: str, volume: CsiVolume) -> Iterator[tuple[str, str]]:
    with closing(CsiCallers(node)) as factory:
        kubelet = factory(driver)
        target = kubelet.mount(_POD, volume)
        kind = "an inline volume" if volume.inline else f"a PersistentVolume with the handle {volume.handle}"
        yield "publish", f"kubelet publishes {driver} for a pod over CSI, {kind}"
        yield from _seen_at(target)
        kubelet.unmount(_POD, volume.name)
        yield "unmount", "the pod is gone"


def _device_over_csi(node: ScratchNode, driver: str) -> Iterator[tuple[str, str]]:
    with closing(CsiCallers(node)) as factory:
        kubelet = factory(driver)
        try:
            with created(kubelet, "device", block=True) as volume:
                yield "create", f"a provisioner has {driver} make a block volume, {volume.handle}"
                with kubelet.mount(_POD, volume).open("rb") as device:
                    size = device.seek(0, os.SEEK_END)
                yield "publish", f"the pod gets a device of {write_quantity(size)}"
                kubelet.unmount(_POD, volume.name)
                yield "unmount", "the pod is gone"
        except CsiFailure as error:
            if error.code != "UNIMPLEMENTED":
                raise
            yield "device", f"{driver} creates no volumes, so there is no block volume to show"
        else:
            yield "delete", "the block volume is deleted"


def _seen_at(target: Path) -> Iterator[tuple[str, str]]:
    found = mounted_at(str(target))
    yield "target", f"{found.fs_type} ({','.join(found.options)})" if found else "nothing is mounted there"
    names = sorted(entry.name for entry in target.iterdir())
    yield "files", f"the pod sees {', '.join(names) or 'an empty folder'}"


def _device(node: ScratchNode, resource: str, _example: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    with BlockingKubelet(node.root / "var" / "lib" / "kubelet") as kubelet:
        _until_listed(node, kubelet, resource)
        healthy, total = kubelet.allocatable(resource), kubelet.capacity(resource)
        yield "list", f"kubelet has {total} devices of {resource}, {healthy} of them healthy"
        if resource in counted(node):
            yield "count", f"{resource} is only counted: no container asks for it"
            return
        answer = kubelet.admit("pod", {resource: 1})[resource]
        granted = list(_granted(answer))
        yield "pod", f"a container asks for one {resource} and gets{'' if granted else ' nothing'}"
        yield from granted


def _until_listed(node: ScratchNode, kubelet: BlockingKubelet, resource: str) -> None:
    """Wait until kubelet has devices; if it gets none, raise NotReady with the reason."""
    why = ""
    for seconds in (_ENOUGH, _PATIENCE):
        try:
            kubelet.until(lambda: kubelet.stand_in.capacity(resource) > 0, seconds)
        except TimeoutError:
            row = next(row for row in node.status()["resources"] if row["resource"] == resource)
            why = row["error"] or row["absent"]
        else:
            return
        if why:
            break
    raise NotReady(f"kubelet has no device of {resource}: {why or 'device_list answers none'}")


def _granted(answer: Any) -> Iterator[tuple[str, str]]:
    for spec in answer.devices:
        yield "node", f"{spec.host_path} as {spec.container_path} ({spec.permissions})"
    for mount in answer.mounts:
        yield "mount", f"{mount.host_path} as {mount.container_path} ({'ro' if mount.read_only else 'rw'})"
    for name, value in sorted(answer.envs.items()):
        yield "env", f"{name}={value}"
    for name, value in sorted(answer.annotations.items()):
        yield "note", f"{name}={value}"
    for device in answer.cdi_devices:
        yield "cdi", device.name


def _network(path: Path) -> Mapping[str, Any]:
    try:
        return dict(json.loads(read_file(path).decode()))
    except ValueError as error:
        raise InvalidRequest(f"{path} is not a network list: {error}") from error


def _namespaces() -> list[str]:
    """Return the command that gives an ordinary user namespaces; empty if that is not allowed."""
    try:
        inside = namespaces.command(network=True)
    except NotReady:
        return []
    return inside if subprocess.run([*inside, "true"], check=False, capture_output=True).returncode == 0 else []


def options_of(texts: Sequence[str]) -> Mapping[str, str]:
    """Split `KEY=VALUE` texts; raise InvalidRequest if one has no `=`."""
    wrong = [text for text in texts if "=" not in text]
    if wrong:
        raise InvalidRequest(f"{wrong[0]!r} is not a volume option; use KEY=VALUE, such as name=shared")
    return {key: value for key, _, value in (text.partition("=") for text in texts)}
