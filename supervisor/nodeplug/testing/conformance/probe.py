"""The child process of a rehearsal: it constructs the plugin and calls its hooks without a daemon.

Owns: the order of the acts, a thread and a time limit for each, and what it leaves behind: threads, descriptors, files.
Refuses: to judge. It writes what it saw as JSON into the file `seen.json` of its folder; rules read that.
"""

import gc
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.errors import NotFound, PluginError, text_of
from nodeplug.contract.host import Host
from nodeplug.contract.journal import Journal, read_boot_id
from nodeplug.contract.values import (
    CniRequest,
    CniResult,
    Device,
    DeviceId,
    DeviceList,
    DevicePrefer,
    DeviceReleased,
    ResourceClaim,
    ResourceName,
    VolumeId,
    VolumeIdentify,
    VolumeUnpublish,
    VolumeUnstage,
)
from nodeplug.device.codec import encode_list, worst_case_size
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.slot import Instance
from nodeplug.loading.answers import check_answer
from nodeplug.loading.classes import Found, validate_config
from nodeplug.loading.discovery import find
from nodeplug.loading.examination import examine_hooks, unmarked

_CLAIM: Final = ResourceClaim(uid="conformance-never", namespace="default", name="conformance", request="device")
UNKNOWN_KEY: Final = "conformance-unknown-key"


class _Hung(Exception):
    """An act did not end: nothing after it can be trusted."""


class _Acts:
    """What was tried, in order."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.seen: dict[str, dict[str, Any]] = {}

    def play(self, name: str, work: Callable[[], Any], show: Callable[[Any], Any] = lambda _: None) -> Any:
        """Run one act in a thread of its own, as the daemon runs hooks; return its answer, None if it failed."""
        outcome: dict[str, Any] = {}

        def run() -> None:
            try:
                outcome["answer"] = work()
            except BaseException as error:
                outcome["error"] = error

        thread = threading.Thread(target=run, name=f"act {name}", daemon=True)
        started = time.perf_counter()
        thread.start()
        thread.join(self.patience)
        error = outcome.get("error")
        self.seen[name] = {
            "seconds": time.perf_counter() - started,
            "hung": thread.is_alive(),
            "error": None if error is None else f"{type(error).__name__}: {text_of(error)}",
            "stray": error is not None and not isinstance(error, PluginError),
            "answer": show(outcome["answer"]) if "answer" in outcome else None,
        }
        if thread.is_alive():
            raise _Hung(name)
        return outcome.get("answer")


class Probe:
    """One process's view of the plugin.

    Args:
        order: `uses`, `config`, `options`, `folder` and `patience`.
    """

    def __init__(self, order: Mapping[str, Any]) -> None:
        self.order = order
        self.folder = Path(order["folder"])
        self.acts = _Acts(float(order["patience"]))
        self.document: dict[str, Any] = {"acts": self.acts.seen, "mistyped": []}
        self.boot_id = read_boot_id()  # the real one: in another boot, a plugin would release what this one holds
        self._kept: list[object] = []
        self._found: Found | None = None

    def run(self, script: str) -> None:
        """Play a script and write down what was seen."""
        with suppress(_Hung):
            {"life": self._life, "kill": self._kill, "again": self._again}[script]()
        self._write()

    def _write(self) -> None:
        (self.folder / "seen.json").write_text(json.dumps(self.document, default=str), encoding="utf-8")

    # --- scripts

    def _life(self) -> None:
        if not self._import():
            return
        threads, descriptors = _threads(), _descriptors()
        first = self._construct("construct")
        self.document["constructor_threads"] = sorted(thread.name for thread in _threads() - threads)
        self.document["constructor_descriptors"] = _new(descriptors, _descriptors())
        self.document["constructor_files"] = sorted(str(path) for path in self.folder.rglob("*"))
        if first is None:
            return
        loaded = self._examine("examine", first) if self._has_hooks(first) else None
        if loaded is None:
            return
        self._describe(loaded, first)
        self._more_claims(loaded)
        self._folders()
        self._devices(loaded, self._cycle(loaded, "", threads))
        self._volumes(loaded)
        self._end(loaded, "", threads)
        self._second_cycle(threads)

    def _kill(self) -> None:
        loaded = self._fresh("")
        if loaded is not None:
            self._hook(loaded, "start", "start")
            for claim in loaded.claims:
                if claim.kind == "device":
                    self._hook(
                        loaded,
                        f"list {claim.name}",
                        "device_list",
                        request=DeviceList(resource=ResourceName(claim.name)),
                    )
        self._write()
        os.kill(os.getpid(), signal.SIGKILL)

    def _again(self) -> None:
        loaded = self._fresh("")
        if loaded is not None:
            self._hook(loaded, "start", "start")
            self._hook(loaded, "health", "health")
            self._hook(loaded, "stop", "stop")

    def _second_cycle(self, threads: set[threading.Thread]) -> None:
        """Run a second life: what grows from one life to the next is a leak, what is loaded once is not."""
        gc.collect()
        before = _descriptors()
        loaded = self._fresh(" again")
        if loaded is None:
            return
        self._cycle(loaded, " again", threads)
        for claim in loaded.claims:
            if claim.kind == "device":
                self._hook(
                    loaded,
                    f"list {claim.name} again",
                    "device_list",
                    request=DeviceList(resource=ResourceName(claim.name)),
                )
        self._end(loaded, " again", threads)
        gc.collect()
        self.document["left_descriptors"] = _new(before, _descriptors())

    def _cycle(self, loaded: Instance, suffix: str, _threads_before: set[threading.Thread]) -> bool:
        self._hook(loaded, f"start{suffix}", "start")
        self._hook(loaded, f"health{suffix}", "health")
        self._hook(loaded, f"inspect{suffix}", "inspect", _unwritable)
        self._hook(loaded, f"metrics{suffix}", "metrics")
        return self.acts.seen.get(f"start{suffix}", {}).get("error") is None

    def _end(self, loaded: Instance, suffix: str, threads: set[threading.Thread]) -> None:
        self._hook(loaded, f"stop{suffix}", "stop")
        if not suffix:
            self._hook(loaded, "second stop", "stop")
        deadline = time.monotonic() + min(self.acts.patience, 1.0)
        while (left := _threads() - threads) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.document["left_threads"] = sorted(thread.name for thread in left)

    # --- acts

    def _import(self) -> bool:
        self._found = found = self.acts.play("import", lambda: find(self.order["uses"]))
        if found is None:
            return False
        model, config = found.config_model, dict(self.order["config"])
        self.acts.play("unknown key", lambda: model.model_validate({**config, UNKNOWN_KEY: 1}))
        return True

    def _fresh(self, suffix: str) -> Instance | None:
        if self._found is None:
            self._found = find(self.order["uses"])
        self._folders()
        plugin = self._construct(f"construct{suffix}")
        return None if plugin is None else self._examine(f"examine{suffix}", plugin)

    def _construct(self, name: str) -> object | None:
        found = self._found
        assert found is not None

        def construct() -> object:
            return found.cls(validate_config("plugin", found, self.order["config"]), self._host())

        plugin: object | None = self.acts.play(name, construct)
        if plugin is not None:
            self._kept.append(plugin)  # the garbage collector must not close what stop leaves open
        return plugin

    def _has_hooks(self, plugin: object) -> bool:
        """Examine the hooks apart, so that a mistake in them is not also reported for the claims."""
        uses = self.order["uses"]
        hooks = self.acts.play(
            "examine hooks", lambda: examine_hooks("plugin", plugin, uses), lambda found: sorted(found.own)
        )
        return hooks is not None

    def _examine(self, name: str, plugin: object) -> Instance | None:
        loaded: Instance | None = self.acts.play(name, lambda: Registry().load("plugin", plugin, self.order["uses"]))
        return loaded

    def _describe(self, loaded: Instance, plugin: object) -> None:
        self.document["hooks"] = sorted(loaded.hooks)
        self.document["wrappers"] = sorted(loaded.examined.wrappers)
        self.document["claims"] = [[claim.kind, claim.name] for claim in loaded.claims]
        self.document["counted"] = [claim.name for claim in loaded.claims if getattr(claim, "counted", False)]
        self.document["unmarked"] = sorted(unmarked(type(plugin)))

    def _more_claims(self, loaded: Instance) -> None:
        self.acts.play("claims again", lambda: [str(claim) for claim in loaded.callers["claims"]()], list)
        second = self._fresh(" second")
        if second is not None:
            self.document["second_claims"] = [str(claim) for claim in second.claims]
            self._hook(second, "stop before start", "stop")

    def _hook(
        self, loaded: Instance, name: str, hook: str, show: Callable[[Any], Any] = lambda _: None, **more: Any
    ) -> Any:
        """Call a hook if the plugin has it, and note an answer that the contract does not allow."""
        if hook not in loaded.hooks:
            return None
        answer = self.acts.play(name, lambda: loaded.callers[hook](**more), show)
        if self.acts.seen[name]["error"] is None:
            try:
                check_answer(loaded.name, hook, answer)
            except PluginError as error:
                self.document["mistyped"].append(str(error))
        return answer

    def _devices(self, loaded: Instance, started: bool) -> None:
        self.document["devices"] = {}
        for claim in loaded.claims if started else ():
            if claim.kind == "device":
                self._resource(loaded, ResourceName(claim.name))

    def _resource(self, loaded: Instance, resource: ResourceName) -> None:
        lists = [
            self._hook(loaded, f"list {resource} {turn}", "device_list", _ids, request=DeviceList(resource=resource))
            for turn in (1, 2)
        ]
        devices = [device for device in lists[0] or () if isinstance(device, Device)]
        about = self.document["devices"][resource] = {"ids": _ids(devices), "size": 0, "refused": None, "described": []}
        with suppress(TypeError, ValueError, AttributeError):
            about["size"] = worst_case_size(devices)
            about["described"] = [_described(one) for one in devices]
        try:
            encode_list(resource, devices)
        except PluginError as error:
            about["refused"] = str(error)
        ids = tuple(device.id for device in devices if device.healthy)
        if ids:
            self._preferences(loaded, resource, ids)
            for what, pod, claim in (("release", "conformance", None), ("end of claim", "", _CLAIM)):
                released = DeviceReleased(
                    resource=resource, ids=ids[:1], namespace="default", pod=pod, container=pod, claim=claim
                )
                for turn in ("", " again"):
                    self._hook(loaded, f"{what} {resource}{turn}", "device_released", request=released)

    def _preferences(self, loaded: Instance, resource: ResourceName, ids: tuple[DeviceId, ...]) -> None:
        few = ids[:8]
        for name, available, must, size in (
            ("one", few, (), 1),
            ("with", few, few[-1:], min(2, len(few))),
            ("all", few, (), len(few)),
            ("short", few, (), len(few) + 1),
        ):
            request = DevicePrefer(resource=resource, available=available, must_include=must, size=size)
            self._hook(loaded, f"prefer {name} {resource}", "device_prefer", _texts, request=request)
            self.acts.seen.get(f"prefer {name} {resource}", {})["asked"] = [list(available), list(must), size]

    def _volumes(self, loaded: Instance) -> None:
        options = dict(self.order["options"])
        backwards = dict(reversed(options.items()))
        for claim in loaded.claims:
            if claim.kind != "volume":
                continue
            path, volume = str(self.folder / "never"), VolumeId("conformance-never")
            gone = VolumeUnpublish(driver=claim.name, volume_id=volume, target_path=path)
            self._hook(loaded, f"unpublish {claim.name}", "volume_unpublish", request=gone)
            unstaged = VolumeUnstage(driver=claim.name, volume_id=volume, staging_path=path)
            self._hook(loaded, f"unstage {claim.name}", "volume_unstage", request=unstaged)
            for turn, said in (("1", options), ("2", backwards)):
                identify = VolumeIdentify(driver=claim.name, options=said)
                self._hook(loaded, f"name {claim.name} {turn}", "volume_id", str, request=identify)

    # --- what a plugin is given

    def _folders(self) -> None:
        for name in ("state", "run"):
            (self.folder / name).mkdir(exist_ok=True)

    def _host(self) -> Host:
        return Host(
            plugin="plugin",
            node_name="node-1",
            boot_id=self.boot_id,
            log=logging.LoggerAdapter(logging.getLogger("nodeplug.conformance"), {}),
            journal=Journal(self.folder / "state" / "journal", self.boot_id),
            state_dir=self.folder / "state",
            run_dir=self.folder / "run",
            _refresh=lambda _: None,
            _delegate=_no_delegate,
        )


def _no_delegate(request: CniRequest, plugin_type: str, config: Mapping[str, Any]) -> CniResult | None:
    raise NotFound(f"there is no plugin {plugin_type!r} for {request.claim} ({config.get('name')}) in a rehearsal")


def _ids(devices: Any) -> list[str]:
    return [str(getattr(device, "id", device)) for device in devices or ()]


def _described(device: Device) -> dict[str, Any]:
    part = None if device.part is None else [device.part.of, dict(device.part.amount)]
    counters = None if (one := device.counters) is None else [one.of, dict(one.available), dict(one.consumed)]
    said = {"attributes": dict(device.attributes), "capacity": dict(device.capacity)}
    return {"id": device.id, "part": part, "counters": counters, **said}


def _texts(answer: Any) -> list[str] | None:
    return None if answer is None else [str(one) for one in answer]


def _unwritable(answer: Any) -> str:
    """Say what keeps an answer from being JSON; empty when nothing does."""
    try:
        json.dumps(answer)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def _threads() -> set[threading.Thread]:
    return set(threading.enumerate())


def _descriptors() -> list[str]:
    """Name what each open descriptor refers to, without the numbers of sockets and pipes."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(os.readlink(entry).partition(":[")[0])
    return [name for name in found if not name.endswith("/fd")]


def _new(before: list[str], after: list[str]) -> list[str]:
    rest = list(after)
    for name in before:
        if name in rest:
            rest.remove(name)
    return sorted(rest)


def main() -> None:
    """Read the order from stdin, play the script of the first argument."""
    logging.getLogger().addHandler(logging.NullHandler())
    probe = Probe(json.load(sys.stdin))
    probe.run(sys.argv[1])
    for stream in (sys.stdout, sys.stderr):  # a text without a newline at its end may still be held
        stream.flush()
    os._exit(0)  # noqa: TID251 - a plugin's own threads must not keep the rehearsal from ending


if __name__ == "__main__":
    main()
