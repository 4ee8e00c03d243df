"""Delegation to another CNI plugin (SPEC 1.1.0, section 4).

Owns: calling a claim of this daemon in the same thread, or executing a foreign binary from CNI_PATH with the request's
environment and the complete configuration, and reading its output as libcni does.
Refuses: the event loop: it runs inside a hook, in the thread of the call, and a child inherits the network namespace of
that thread, which is the caller's host side.
"""

import errno
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from nodeplug.cni import results
from nodeplug.cni.bounded_child import WroteTooMuch, communicate
from nodeplug.cni.delegates import Delegates
from nodeplug.contract.errors import DeadlineExceeded, DelegateFailed, InvalidRequest, NotFound, PluginError
from nodeplug.contract.inputs import DELEGATE_ERRORS, DELEGATE_OUTPUT
from nodeplug.contract.netns import Netns
from nodeplug.contract.values import (
    CniAdd,
    CniAttachmentRequest,
    CniCheck,
    CniDel,
    CniGc,
    CniRequest,
    CniResult,
    CniStatus,
)
from nodeplug.hosting.call import CURRENT
from nodeplug.hosting.hook_call import time_left, working_on
from nodeplug.hosting.in_flight import InFlight
from nodeplug.hosting.overdue import CallSubject
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import invoke
from nodeplug.hosting.slot import Route

HOOK_OF: Final[Mapping[type[CniRequest], str]] = {
    CniAdd: "cni_add",
    CniDel: "cni_del",
    CniCheck: "cni_check",
    CniGc: "cni_gc",
    CniStatus: "cni_status",
}
STDERR_LIMIT: Final = DELEGATE_ERRORS.size
"""Bytes of a foreign plugin's stderr that are passed to the caller."""
_SHARE: Final = 0.8
"""Of the time that a call has left, what a foreign plugin may take: the rest is for a DEL, and to say what happened."""
_LEAST: Final = 0.1
"""Seconds that it has all the same."""
_BUSY_TRIES: Final = 30
DEEPEST: Final = 8
"""Limit of nested delegation: hooks of this daemon that may run inside each other for one request."""
_BUSY_PAUSE: Final = 0.2
_INTERNAL: Final = 999


@dataclass(frozen=True, slots=True)
class Delegation:
    """Runs delegates for the plugins of a registry; implements `nodeplug.contract.host.Delegate`.

    Attributes:
        registry: finds the plugin that serves a claim.
        delegates: are told what plugins of this daemon attached and detached; None where nobody has to know.
        timeout: seconds that a foreign plugin may take at most; never as long as the call that it is a part of.
        visiting: the context of a call to a claim of this daemon: see `Runner.visiting`.
        in_flight: has the request of a claim of this daemon while it is served.
    """

    registry: Registry
    delegates: Delegates | None = None
    timeout: float = 50.0
    visiting: Callable[[Route], AbstractContextManager[Route]] = nullcontext
    in_flight: InFlight = field(default_factory=InFlight)

    def __call__(self, request: CniRequest, plugin_type: str, config: Mapping[str, Any]) -> CniResult | None:
        """Run a delegate with this configuration for the request; return the result of ADD, None for other verbs.

        Raises:
            DelegateFailed: the delegate returned an error, or output that cannot be read.
            DeadlineExceeded: the delegate timed out and was killed.
            NotFound: no plugin serves the name, and CNI_PATH has no such file.
            InvalidRequest: the name has a slash, or is empty; or plugins delegate to each other without end.
        """
        if not plugin_type or "/" in plugin_type:
            raise InvalidRequest(f"invalid plugin name: {plugin_type!r}; it must be the name of a file on CNI_PATH")
        # Host-side work belongs in the caller's namespace, even if the plugin has switched its thread to another.
        subject = CallSubject(f"network {request.network}", config)
        with request.host_netns.entered(), working_on(subject):
            if any(route.claim.name == plugin_type for route in self.registry.routes("cni")):
                with self.visiting(self.registry.route("cni", plugin_type)) as route:
                    return self._inside(route, request, config)
            return self._outside(find_plugin(plugin_type, request.path), request, config)

    def _inside(self, route: Route, request: CniRequest, config: Mapping[str, Any]) -> CniResult | None:
        if request.id and self.in_flight.depth(request.id) >= DEEPEST:
            raise InvalidRequest(
                f"{route.claim.name} is not called: {DEEPEST} plugins have delegated to each other already; look for "
                "one whose configuration leads back to itself"
            )
        hook = HOOK_OF[type(request)]
        asked = replace(request, claim=route.claim.name, config=config)
        arguments: Mapping[str, Any] = {"request": asked}
        if hook == "cni_status" and hook not in route.hooks:
            hook, arguments = "health", {}
        result: CniResult | None = None
        if hook in route.hooks:
            with self.in_flight.entered(route.plugin, asked):
                result = invoke(route, hook, arguments)
        if self.delegates is not None:
            self.delegates.note(asked, result)
        return result

    def _outside(self, program: Path, request: CniRequest, config: Mapping[str, Any]) -> CniResult | None:
        verb = HOOK_OF[type(request)].removeprefix("cni_").upper()
        netns = getattr(request, "netns", None)
        path, descriptors = _reachable(netns)
        env = _environment(verb, request, path)
        config = _with_previous(request, config)
        stdin = json.dumps(config).encode()
        try:
            stdout = self._checked(program, env, stdin, descriptors)
            if verb != "ADD":
                return None
            return _read_result(stdout, config, request.version, {path: "" if netns is None else netns.path})
        except PluginError:
            if verb == "ADD":
                # SPEC: when a delegate fails ADD, it gets a DEL before the error is returned.
                with suppress(PluginError):
                    self._checked(program, {**env, "CNI_COMMAND": "DEL"}, stdin, descriptors)
            raise

    def _checked(self, program: Path, env: Mapping[str, str], stdin: bytes, descriptors: tuple[int, ...]) -> bytes:
        timeout = max(_LEAST, min(self.timeout, _SHARE * time_left()))
        answer = run(program, env, stdin, descriptors, timeout)
        call = CURRENT.get()
        if call is not None:
            call.stderr.extend(answer.stderr[: max(0, STDERR_LIMIT - len(call.stderr))])
        if answer.returncode != 0:
            raise _failure(program.name, answer)
        return answer.stdout


def find_plugin(plugin_type: str, path: tuple[str, ...]) -> Path:
    """Find a plugin on CNI_PATH: the first regular file of the name, or symlink to one; NotFound if there is none."""
    for folder in path:
        candidate = Path(folder) / plugin_type
        if candidate.is_file():
            return candidate
    raise NotFound(
        f"failed to find plugin {json.dumps(plugin_type)} in path [{' '.join(path)}]",
        details="install it there, or enable a nodeplug plugin of that name",
    )


def run(
    program: Path, env: Mapping[str, str], stdin: bytes, descriptors: tuple[int, ...] = (), timeout: float = 50.0
) -> subprocess.CompletedProcess[bytes]:
    """Execute a foreign plugin in its own session, which is killed at the timeout.

    Raises:
        DeadlineExceeded: it did not end in `timeout` seconds.
        DelegateFailed: it cannot be executed, or writes without end.
    """
    deadline = time.monotonic() + timeout
    child = _spawn(program, env, descriptors, deadline)
    left = max(0.0, deadline - time.monotonic())
    try:
        stdout, stderr = communicate(
            child, stdin, left, most_output=DELEGATE_OUTPUT.size, most_errors=DELEGATE_ERRORS.size
        )
    except subprocess.TimeoutExpired:
        raise DeadlineExceeded(f"the delegate {program} did not end within {timeout:.2g} s and was killed") from None
    except WroteTooMuch as error:
        raise DelegateFailed(f"the delegate {program} was killed: {error}", code=_INTERNAL) from None
    return subprocess.CompletedProcess(child.args, child.returncode, stdout, stderr)


def _spawn(
    program: Path, env: Mapping[str, str], descriptors: tuple[int, ...], deadline: float
) -> "subprocess.Popen[bytes]":
    for left in reversed(range(_BUSY_TRIES)):
        try:
            return subprocess.Popen(
                [str(program)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                pass_fds=descriptors,
                start_new_session=True,
            )
        except OSError as error:
            # The file is being overwritten in place instead of replaced by a rename; that is temporary.
            if error.errno != errno.ETXTBSY or not left or time.monotonic() + _BUSY_PAUSE > deadline:
                text = f"cannot execute the delegate {program}: {error.strerror}"
                raise DelegateFailed(text, code=_INTERNAL) from error
        time.sleep(_BUSY_PAUSE)
    raise AssertionError("the last attempt raises")


def _reachable(netns: Netns | None) -> tuple[str, tuple[int, ...]]:
    """Return a path by which a child can open the namespace, and the descriptors that it must inherit for that."""
    if netns is None:
        return "", ()
    if not netns.is_open:
        return netns.path, ()
    try:
        status = Path(netns.path).stat()
        if (status.st_dev, status.st_ino) == netns.identity:
            return netns.path, ()
    except (OSError, ValueError):
        pass  # the caller has another mount namespace
    return f"/proc/self/fd/{netns.fd}", (netns.fd,)


def _environment(verb: str, request: CniRequest, netns: str) -> dict[str, str]:
    attachment = request if isinstance(request, CniAttachmentRequest) else None
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": attachment.container_id if attachment else "",
        "CNI_NETNS": netns,
        "CNI_IFNAME": attachment.ifname if attachment else "",
        # A DEL must come through even where ADD was refused for what cannot be read.
        "CNI_ARGS": "" if attachment is None else _pairs(attachment) if verb == "DEL" else attachment.args_as_text(),
        "CNI_PATH": ":".join(request.path),
    }


def _with_previous(request: CniRequest, config: Mapping[str, Any]) -> dict[str, Any]:
    """Add `prevResult` to what a foreign plugin is given, unless the configuration has it."""
    before = request.prev_result if isinstance(request, CniAttachmentRequest) else None
    if before is None or any(key.lower() == "prevresult" for key in config):
        return dict(config)
    version = str(config.get("cniVersion") or request.version)
    return {**config, "prevResult": results.encode(before, version)}


def _pairs(request: CniAttachmentRequest) -> str:
    return ";".join(f"{name}={value}" for name, value in request.args.items())


def _read_result(stdout: bytes, config: Mapping[str, Any], version: str, spelling: Mapping[str, str]) -> CniResult:
    try:
        document = DELEGATE_OUTPUT.loads(stdout)
    except (ValueError, RecursionError) as error:
        raise DelegateFailed(f"failed to unmarshal raw result: {error}", code=_INTERNAL) from None
    if document is None:
        return CniResult()
    fields = {str(key).lower(): value for key, value in document.items()} if isinstance(document, dict) else {}
    own = fields.get("cniversion") or config.get("cniVersion") or version
    try:
        result = results.decode(document, str(own))
    except PluginError as error:
        raise DelegateFailed(f"failed to unmarshal raw result: {error}", code=_INTERNAL) from None
    # A result repeats CNI_NETNS as the caller spelled it, not the path that the child used.
    spelled = (replace(one, sandbox=spelling.get(one.sandbox, one.sandbox)) for one in result.interfaces)
    return replace(result, interfaces=tuple(spelled))


def _failure(name: str, answer: subprocess.CompletedProcess[bytes]) -> DelegateFailed:
    """Read an error as libcni does, with its three texts for output that is not error JSON."""
    if not answer.stdout:
        if answer.stderr:
            return DelegateFailed(f'netplugin failed: "{_text(answer.stderr)}"', code=_INTERNAL)
        return DelegateFailed(f"netplugin failed with no error message: {_ending(answer.returncode)}", code=_INTERNAL)
    try:
        document = DELEGATE_OUTPUT.loads(answer.stdout)
        fields = {str(key).lower(): value for key, value in document.items()}
        return DelegateFailed(
            str(fields.get("msg") or f"plugin {name!r} failed without a message"),
            code=int(fields.get("code") or _INTERNAL),
            details=str(fields.get("details") or ""),
        )
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        return DelegateFailed(
            f'netplugin failed but error parsing its diagnostic message "{_text(answer.stdout)}": {error}',
            code=_INTERNAL,
        )


def _ending(status: int) -> str:
    return f"exit status {status}" if status > 0 else f"signal: {signal.strsignal(-status) or -status}".lower()


def _text(data: bytes) -> str:
    # Keep control characters of a foreign program out of logs; 4096 characters are enough for an error.
    return re.sub(r"[^\x20-\x7e\n\t]", "?", data.decode(errors="replace"))[:4096]
