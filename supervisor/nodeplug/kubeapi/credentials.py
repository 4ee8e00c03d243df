"""Tokens and certificates, as they are just now: files are read again, programs asked again, when they have expired.

Owns: one thread for all that may block, what it has found last, and the TLS context made from it. A private key is
never written to a disk: OpenSSL reads it from memory.
Refuses: what a kubeconfig means (`access`), and to say what it has read.
"""

import json
import os
import ssl
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.errors import InvalidRequest, PluginError, TryAgain
from nodeplug.kubeapi.access import IN_POD, Access, ExecPlugin, Material, in_pod, read_kubeconfig
from nodeplug.process.environment import copy_environment
from nodeplug.process.lane import Lane

AGE: Final = 30.0
"""Seconds after which files are looked at again: kubelet writes a new token when four fifths of its time are over."""
_EARLY: Final = 10.0
"""Seconds before its end in which what a program printed is no longer used."""
_LIMIT: Final = 1 << 20
_PATIENCE: Final = 60.0
"""Seconds that a program may take, or a disk."""


def find(kubeconfig: Path | None, environment: Mapping[str, str] | None = None) -> Access:
    """Find out how to reach the API server; reads files.

    Args:
        kubeconfig: the file that was named; None looks at `KUBECONFIG`, the pod's ServiceAccount, `~/.kube/config`.
        environment: instead of that of the process.

    Raises:
        InvalidRequest: there is none, or it is wrong.
    """
    env = os.environ if environment is None else environment
    named = env.get("KUBECONFIG", "")
    if kubeconfig is None and os.pathsep in named:
        raise InvalidRequest(
            f"KUBECONFIG names several files, which are not merged here: name one with --kubeconfig: {named}"
        )
    path = kubeconfig or (Path(named) if named else None)
    if path is None:
        inside = in_pod(env, namespace=_namespace())
        if inside is not None:
            return inside
        path = Path(env.get("HOME", "/root"), ".kube", "config")
    try:
        data = read_bounded(path, _LIMIT)
    except OSError as error:
        raise InvalidRequest(
            f"cannot read the kubeconfig {path}: {error.strerror}; name one with --kubeconfig"
        ) from error
    return replace(read_kubeconfig(data, path.parent, str(path)), kubeconfig=path)


def _namespace() -> str:
    with suppress(OSError, UnicodeDecodeError):
        return read_bounded(IN_POD / "namespace", _LIMIT).decode().strip() or "default"
    return "default"


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown to the server.

    Attributes:
        token: for the Authorization header; empty if there is none.
        tls: how to connect; None without TLS. Another object means: connect again.
    """

    token: str = field(repr=False)
    tls: ssl.SSLContext | None


@dataclass(frozen=True, slots=True)
class _Printed:
    """What a program printed."""

    token: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)
    until: float = float("inf")


class Credentials:
    """What one client shows. Event loop only; the work is done in a thread.

    Args:
        access: what is used.
        age: seconds after which files are looked at again.
    """

    def __init__(self, access: Access, *, age: float = AGE) -> None:
        self.access = access
        self._age = age
        self._lane = Lane(f"the credentials of {access.source}", _PATIENCE)
        self._shown: Shown | None = None
        self._looked = 0.0
        self._printed: _Printed | None = None
        self._made_of: tuple[bytes, ...] = ()
        self._kubeconfig = b""

    async def show(self) -> Shown:
        """Return what is valid now.

        Raises:
            PluginError: a file cannot be read or is wrong, or the program failed.
        """
        if self._shown is None or time.monotonic() - self._looked >= self._age or self._over():
            self._shown = await self._lane.run(self._look)
            self._looked = time.monotonic()
        return self._shown

    def forget(self) -> None:
        """Look at everything again before the next request: the server has refused what it was shown."""
        self._looked, self._printed = float("-inf"), None

    def _over(self) -> bool:
        return self._printed is not None and time.time() >= self._printed.until - _EARLY

    def _look(self) -> Shown:
        """Read what has to be read; keeps the context while it is made of the same bytes."""
        access = self._again()
        if access.exec is not None and (self._printed is None or self._over()):
            self._printed = _ask(access.exec, access.source)
        printed = self._printed or _Printed()
        token = _read(Material(file=access.token_file), "tokenFile").decode("latin-1").strip() or access.token
        if not access.encrypted:
            return Shown("", None)
        authority = _read(access.authority, "certificate-authority")
        certificate = printed.certificate or _read(access.certificate, "client-certificate")
        key = printed.key or _read(access.key, "client-key")
        made_of = (authority, certificate, key)
        before = self._shown
        context = before.tls if before is not None and made_of == self._made_of else _context(access, *made_of)
        self._made_of = made_of
        return Shown(_plain(printed.token or token, access.source), context)

    def _again(self) -> Access:
        """Read the kubeconfig again: whoever renews credentials may write them there, not into files that it names.

        One that is wrong, as while it is being written, or that is gone, changes nothing.
        """
        before, path = self.access, self.access.kubeconfig
        if path is None:
            return before
        with suppress(OSError, PluginError):
            data = read_bounded(path, _LIMIT)
            if data != self._kubeconfig:
                self.access = replace(read_kubeconfig(data, path.parent, str(path)), kubeconfig=path)
                self._kubeconfig = data
        if self.access.exec != before.exec:
            self._printed = None
        if self.access.server != before.server:
            self._made_of = ()  # connections to the former server are not used again
        return self.access


def _plain(token: str, source: str) -> str:
    """Return a token that a header can carry."""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequest(f"{source}: the token has characters that no token has")
    return token


def _read(found: Material, what: str) -> bytes:
    if found.file is None:
        return found.data
    try:
        return read_bounded(found.file, _LIMIT)
    except OSError as error:
        raise TryAgain(f"cannot read the {what} {found.file}: {error.strerror}") from error


def _context(access: Access, authority: bytes, certificate: bytes, key: bytes) -> ssl.SSLContext:
    try:
        made = ssl.create_default_context(cadata=authority.decode("ascii") if authority else None)
    except (ssl.SSLError, ValueError):
        raise InvalidRequest(f"{access.source}: the certificate-authority is no certificate in PEM") from None
    # Python 3.13 asks for extensions that the authorities of many clusters do not have; Go's TLS does not.
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    made.set_alpn_protocols(["http/1.1"])
    if access.insecure:
        made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    if certificate or key:
        descriptor = os.memfd_create("client-certificate")
        try:
            os.write(descriptor, certificate + b"\n" + key)
            # The password: otherwise OpenSSL would ask for one on the terminal.
            made.load_cert_chain(f"/proc/self/fd/{descriptor}", password=lambda: b"")
        except (ssl.SSLError, OSError):
            raise InvalidRequest(
                f"{access.source}: the client-certificate and its key do not fit together, or are not PEM"
            ) from None
        finally:
            os.close(descriptor)
    return made


def _ask(plugin: ExecPlugin, source: str) -> _Printed:
    """Run a program for its credentials; what it writes on stderr goes to ours, as kubectl does it."""
    info: dict[str, Any] = {"interactive": False} | ({"cluster": plugin.cluster} if plugin.cluster is not None else {})
    asked = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": info}
    env = {**copy_environment(), **plugin.env, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
    program = plugin.command[0]
    try:
        done = subprocess.run(
            plugin.command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=_PATIENCE, check=False
        )
    except OSError as error:
        raise InvalidRequest(f"{source}: cannot execute {program} (exec): {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise TryAgain(f"{source}: {program} (exec) printed no credentials in {_PATIENCE:g} s") from None
    if done.returncode != 0:
        raise PluginError(f"{source}: {program} (exec) ended with {done.returncode}; run it by hand to see why")
    return _printed(done.stdout, plugin, source)


def _printed(data: bytes, plugin: ExecPlugin, source: str) -> _Printed:
    program = plugin.command[0]
    try:
        document = json.loads(data)
        if document["kind"] != "ExecCredential" or document["apiVersion"] != plugin.api_version:
            raise InvalidRequest(f"{source}: {program} (exec) did not print an ExecCredential of {plugin.api_version}")
        status = document["status"]
        until = status.get("expirationTimestamp")
        return _Printed(
            token=str(status.get("token") or ""),
            certificate=str(status.get("clientCertificateData") or "").encode(),
            key=str(status.get("clientKeyData") or "").encode(),
            until=datetime.fromisoformat(until).timestamp() if until else float("inf"),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidRequest(f"{source}: {program} (exec) printed no ExecCredential in JSON") from None
