"""A network configuration list, run as libcni runs it, by delegation.

Owns: what each plugin of a list is given, and the order.
Refuses: to know any plugin: those of this daemon are called in the same thread, others executed (`Host.delegate`).

Source: libcni, api.go: injectRuntimeConfig, AddNetworkList, DelNetworkList, CheckNetworkList, GCNetworkList.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from nodeplug import (
    CniAdd,
    CniAttachmentRequest,
    CniCheck,
    CniDel,
    CniGc,
    CniRequest,
    CniResult,
    CniStatus,
    DelegateFailed,
    Host,
    PluginError,
)
from nodeplug_net.networks.plan import Conflist, Planned
from nodeplug_net.undo import Errors

_OF_THE_FIRST: Final = frozenset({"IP", "MAC"})
"""Keys of CNI_ARGS with which a caller asks for the default network's address: not for those of all others."""
_R = TypeVar("_R", bound=CniAttachmentRequest)


def add(host: Host, request: CniAdd, planned: Planned) -> CniResult:
    """Attach one network; raise what the plugin that failed has raised, with the network's name."""
    result: CniResult | None = None
    with _named(planned):
        for plugin in _configs(planned):
            asked = replace(_asked(request, planned, plugin), prev_result=result)
            result = host.delegate(asked, str(plugin["type"]), plugin)
    return result or CniResult()


def delete(host: Host, request: CniDel, planned: Planned, result: CniResult | None) -> None:
    """Detach one network, the last plugin first; each is asked, also if another one fails.

    Raises:
        PluginError: with what failed.
    """
    errors = Errors()
    previous = result if planned.conflist["cniVersion"] not in {"0.1.0", "0.2.0", "0.3.0", "0.3.1"} else None
    for plugin in reversed(list(_configs(planned))):
        with errors.kept(), _named(planned):
            asked = replace(_asked(request, planned, plugin), prev_result=previous)
            host.delegate(asked, str(plugin["type"]), plugin)
    errors.raise_all()


def check(host: Host, request: CniCheck, planned: Planned, result: CniResult) -> None:
    """Compare one network with its result; raise the first difference."""
    if planned.conflist.get("disableCheck") in {True, "true"} or _before(planned.conflist, 0, 4):
        return
    with _named(planned):
        for plugin in _configs(planned):
            asked = replace(_asked(request, planned, plugin), prev_result=result)
            host.delegate(asked, str(plugin["type"]), plugin)


def collect(host: Host, request: CniGc, conflist: Conflist) -> None:
    """Have each plugin of a list release what belongs to no valid attachment; all are asked."""
    if conflist.get("disableGC") in {True, "true"} or _before(conflist, 1, 1):
        return
    errors = Errors()
    for plugin in _injected(conflist):
        with errors.kept():
            host.delegate(_about(request, conflist, plugin), str(plugin["type"]), plugin)
    errors.raise_all()


def status(host: Host, request: CniStatus, conflist: Conflist) -> None:
    """Raise what the first plugin of a list says that is not ready."""
    if _before(conflist, 1, 1):
        return
    for plugin in _injected(conflist):
        host.delegate(_about(request, conflist, plugin), str(plugin["type"]), plugin)


def _before(conflist: Conflist, *version: int) -> bool:
    """Whether a list is of an older version of the specification, which does not have the verb."""
    try:
        return tuple(map(int, str(conflist["cniVersion"]).split(".")[:2])) < version
    except ValueError:
        return True


def _injected(conflist: Conflist) -> Iterator[dict[str, Any]]:
    for plugin in conflist["plugins"]:
        yield {**plugin, "name": conflist["name"], "cniVersion": conflist["cniVersion"]}


def _configs(planned: Planned) -> Iterator[dict[str, Any]]:
    """Yield what each plugin is given but for the results of those before it."""
    for plugin in _injected(planned.conflist):
        able = plugin.get("capabilities")
        served = {key for key, on in able.items() if on is True} if isinstance(able, Mapping) else set()
        runtime = {key: value for key, value in planned.runtime.items() if key in served}
        config = {**plugin, "runtimeConfig": runtime} if runtime else plugin
        if planned.cni_args:
            args = config.get("args")
            before = args if isinstance(args, Mapping) else {}
            cni = before.get("cni")
            merged = {**(cni if isinstance(cni, Mapping) else {}), **planned.cni_args}
            config = {**config, "args": {**before, "cni": merged}}
        yield config


def _asked(request: _R, planned: Planned, plugin: Mapping[str, Any]) -> _R:
    args, text = request.args, request.args_text
    if planned.ifname != request.ifname and _OF_THE_FIRST & args.keys():
        args, text = {key: value for key, value in args.items() if key not in _OF_THE_FIRST}, ""
    about = _about(request, planned.conflist, plugin)
    return replace(about, ifname=planned.ifname, args=args, args_text=text)


_Q = TypeVar("_Q", bound=CniRequest)


def _about(request: _Q, conflist: Conflist, plugin: Mapping[str, Any]) -> _Q:
    return replace(
        request,
        network=str(conflist["name"]),
        version=str(conflist["cniVersion"]),
        config=plugin,
        claim=str(plugin["type"]),
    )


class _named:  # noqa: N801 - a block, as contextlib has them
    """Puts the name of the network before what a plugin says; the error stays what it is."""

    def __init__(self, planned: Planned) -> None:
        self._about = f"network {planned.network} ({planned.ifname})"

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, DelegateFailed):
            raise DelegateFailed(f"{self._about}: {error.message}", code=error.code, details=error.details) from error
        if isinstance(error, PluginError):
            error.message = f"{self._about}: {error.message}"
