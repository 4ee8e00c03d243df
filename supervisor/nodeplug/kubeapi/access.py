"""How to reach an API server and who asks, as a kubeconfig or a pod's ServiceAccount says.

Owns: from the text of a kubeconfig to one value. Secrets are in no repr and in no message.
Refuses: to read files: those that it names are read when they are needed (`credentials`), for they change. What
kubectl itself has given up (basic authentication, auth-provider), impersonation, and proxies.

Source: k8s.io/client-go, tools/clientcmd/api/v1/types.go; rest/config.go, `InClusterConfig`.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from nodeplug.contract.errors import InvalidRequest

IN_POD: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a container finds its ServiceAccount."""
_EXEC_VERSION: Final = "client.authentication.k8s.io/v1"
_REFUSED: Final = {
    "username": "basic authentication, which API servers have no more",
    "auth-provider": "auth-provider, which kubectl has no more: use exec",
    "as": "impersonation",
    "as-groups": "impersonation",
}


@dataclass(frozen=True, slots=True)
class Material:
    """A certificate or a key: its bytes in PEM, or the file that has them; neither means that there is none."""

    data: bytes = field(default=b"", repr=False)
    file: Path | None = None

    def __bool__(self) -> bool:
        return bool(self.data) or self.file is not None


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A program that prints credentials (client.authentication.k8s.io, `ExecCredential`).

    Attributes:
        command: the program and its arguments.
        env: what it gets besides our own environment.
        api_version: of the object that it prints.
        cluster: what it is told of the cluster; None if it does not ask (`provideClusterInfo`).
    """

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    api_version: str = _EXEC_VERSION
    cluster: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """An API server, and who asks it.

    Attributes:
        server: its address, `https://host:port`, with a prefix of paths if it has one.
        authority: whose certificates are trusted; none means those of the system.
        server_name: the name that its certificate must have; empty means the host of `server`.
        insecure: its certificate is not checked, because the file says so.
        certificate: of the client.
        key: of the certificate.
        token: of the client.
        token_file: a file with it, which is read again; it wins over `token`.
        exec: a program that prints token or certificate.
        namespace: where objects are looked for that name none.
        source: where this was found, for messages.
        kubeconfig: the file that says all of this, and may say something newer later; None if there is none.
    """

    server: str
    authority: Material = Material()
    server_name: str = ""
    insecure: bool = False
    certificate: Material = Material()
    key: Material = Material()
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    exec: ExecPlugin | None = None
    namespace: str = "default"
    source: str = ""
    kubeconfig: Path | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.server)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.username:
            raise InvalidRequest(f"{self.source}: the server must be https://HOST:PORT, and is {self._server_shown!r}")
        if parts.scheme == "http" and (self.token or self.token_file or self.exec or self.certificate):
            raise InvalidRequest(
                f"{self.source}: credentials are not sent to {self.server}, where anybody could read them"
            )

    @property
    def _server_shown(self) -> str:
        return self.server.rpartition("@")[2]

    @property
    def host(self) -> str:
        """Whom to connect to."""
        return urlsplit(self.server).hostname or ""

    @property
    def port(self) -> int:
        """Where the server listens."""
        parts = urlsplit(self.server)
        return parts.port or (443 if self.encrypted else 80)

    @property
    def prefix(self) -> str:
        """What comes before every path."""
        return urlsplit(self.server).path.rstrip("/")

    @property
    def encrypted(self) -> bool:
        """It is asked over TLS."""
        return self.server.startswith("https:")


def read_kubeconfig(data: bytes, folder: Path, source: str, context: str = "") -> Access:
    """Read a kubeconfig.

    Args:
        data: its bytes, YAML or JSON.
        folder: where it lies: its relative paths begin there.
        source: its name, for messages.
        context: which of its contexts; empty means the current one.

    Raises:
        InvalidRequest: it is none, lacks something, or asks for what is not supported; the message says which.
    """
    try:
        document = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        raise InvalidRequest(f"{source} is no kubeconfig: it is not YAML{where}") from None
    if not isinstance(document, dict):
        raise InvalidRequest(f"{source} is no kubeconfig: it must be a mapping")
    chosen = context or document.get("current-context") or ""
    if not chosen:
        raise InvalidRequest(f"{source} has no current-context: run `kubectl config use-context`, or name another file")
    used = _named(document, "contexts", chosen, "context", source)
    cluster = _named(document, "clusters", used.get("cluster"), "cluster", source)
    user = _named(document, "users", used["user"], "user", source) if used.get("user") else {}
    return _Reader(source, folder).access(cluster, user, str(used.get("namespace") or "default"))


def _named(document: Mapping[str, Any], plural: str, name: object, kind: str, source: str) -> Mapping[str, Any]:
    for one in document.get(plural) or ():
        if isinstance(one, dict) and one.get("name") == name and isinstance(one.get(kind) or {}, dict):
            return one.get(kind) or {}
    raise InvalidRequest(f"{source} has no {kind} {name!r}")


@dataclass(frozen=True, slots=True)
class _Reader:
    source: str
    folder: Path

    def access(self, cluster: Mapping[str, Any], user: Mapping[str, Any], namespace: str) -> Access:
        for key, what in _REFUSED.items():
            if user.get(key):
                raise InvalidRequest(f"{self.source} asks for {what}; it is not supported here")
        if cluster.get("proxy-url"):
            raise InvalidRequest(f"{self.source} asks for a proxy (proxy-url); it is not supported here")
        if cluster.get("insecure-skip-tls-verify") and self._material(cluster, "certificate-authority"):
            raise InvalidRequest(f"{self.source} has a certificate-authority, and says not to check it; remove one")
        token_file, server = user.get("tokenFile"), str(cluster.get("server") or "")
        try:
            parts = urlsplit(server)
            _ = parts.port
        except ValueError:  # its text has parts of the address, which may have a password
            raise InvalidRequest(f"{self.source}: its server is no URL; it must be https://HOST:PORT") from None
        return Access(
            server=server,
            authority=self._material(cluster, "certificate-authority"),
            server_name=str(cluster.get("tls-server-name") or ""),
            insecure=cluster.get("insecure-skip-tls-verify") is True,
            certificate=self._material(user, "client-certificate"),
            key=self._material(user, "client-key"),
            token=str(user.get("token") or ""),
            token_file=self.folder / str(token_file) if token_file else None,
            exec=self._exec(user["exec"], cluster) if user.get("exec") else None,
            namespace=namespace,
            source=self.source,
        )

    def _material(self, found: Mapping[str, Any], key: str) -> Material:
        inline, file = found.get(f"{key}-data"), found.get(key)
        if inline:
            try:
                return Material(data=base64.b64decode(str(inline), validate=False))
            except (binascii.Error, ValueError):
                raise InvalidRequest(f"{self.source}: {key}-data is not base64") from None
        return Material(file=self.folder / str(file)) if file else Material()

    def _exec(self, found: Any, cluster: Mapping[str, Any]) -> ExecPlugin:
        if not isinstance(found, dict) or not found.get("command"):
            raise InvalidRequest(f"{self.source}: exec has no command")
        command = str(found["command"])
        if "/" in command:
            command = str(self.folder / command)
        env = {str(one["name"]): str(one["value"]) for one in found.get("env") or ()}
        told = {
            key: cluster[key] for key in ("server", "tls-server-name", "certificate-authority-data") if key in cluster
        }
        return ExecPlugin(
            command=(command, *map(str, found.get("args") or ())),
            env=env,
            api_version=str(found.get("apiVersion") or _EXEC_VERSION),
            cluster=told if found.get("provideClusterInfo") else None,
        )


def in_pod(environment: Mapping[str, str], folder: Path = IN_POD, namespace: str = "default") -> Access | None:
    """Return what a pod's ServiceAccount gives, or None outside of a pod.

    Args:
        environment: that of the process.
        folder: where the ServiceAccount is mounted.
        namespace: of the pod.
    """
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        return None
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Access(
        server=server,
        authority=Material(file=folder / "ca.crt"),
        token_file=folder / "token",
        namespace=namespace,
        source=f"the ServiceAccount in {folder}",
    )
