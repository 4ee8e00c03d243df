"""A real control plane on a private node's loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

Owns: their processes, keys and folders, and the few calls of the API that a test makes.
Refuses: to build them (see `make consumers`), rights and service accounts of pods unless they are asked for.

etcd is Debian's. Nothing here is reachable from outside the node's network namespace.
"""

import copy
import http.client
import json
import secrets
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from tests.programs import need_command
from tests.real.consumers.ending import end
from tests.real.consumers.private_node import ENV, PrivateNode

from nodeplug.contract.errors import PluginError

Object = dict[str, Any]
PORT: Final = 6443
KUBELETS: Final = "kubelets-own"
_PATIENCE: Final = 90.0
_AUDIT: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}


def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without the machine's authorities, which take long to load
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


TRUSTING: Final = _trusting()
"""For an API server whose certificate is its own, on loopback."""


class ControlPlane:
    """The four processes.

    Args:
        node: where they run.
        folder: an existing folder of its own.
        programs: the folder of kube-apiserver, kube-controller-manager and kube-scheduler.
        authorization: `RBAC`, or everybody may do everything.
        accounts: pods get the tokens of their service accounts.
        controllers: start kube-controller-manager and a kube-scheduler as well.
        listen: the address at which the API is served; 127.0.0.1 is among them in any case.

    Attributes:
        token: of an administrator.
        kubelet_token: of the kubelet of a node called `KUBELETS`.
    """

    def __init__(
        self,
        node: PrivateNode,
        folder: Path,
        programs: Path,
        authorization: str = "AlwaysAllow",
        *,
        accounts: bool = False,
        controllers: bool = True,
        listen: str = "127.0.0.1",
    ) -> None:
        self.node, self.folder, self.programs, self._accounts = node, folder, programs, accounts
        self._controllers, self._listen, self._reached = controllers, listen, "127.0.0.1"
        self._authorization = authorization
        self.token = secrets.token_hex(16)
        self.kubelet_token = secrets.token_hex(16)
        self._processes = ExitStack()
        self._api: subprocess.Popen[bytes] | None = None

    @property
    def server(self) -> str:
        """Where the API is, inside the node."""
        return f"https://{self._reached}:{PORT}"

    def seen_at(self, address: str) -> "ControlPlane":
        """Return this one as a node knows it that reaches it at another address."""
        other = copy.copy(self)
        other._reached = address
        return other

    @property
    def authority(self) -> Path:
        """Who has signed the server's certificate."""
        return self.folder / "certificates" / "apiserver.crt"

    @property
    def kubeconfig(self) -> str:
        """What a client needs to find it; JSON is YAML too."""
        cluster = {"server": self.server, "insecure-skip-tls-verify": True}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "here", "cluster": cluster}],
                "users": [{"name": "admin", "user": {"token": self.token}}],
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}],
                "current-context": "here",
            }
        )

    def start(self) -> None:
        """Start all, and wait until the API is ready.

        Raises:
            PluginError: one of them ended, or the API was not ready in time; the message carries the end of a log.
        """
        folder, key = self.folder, self.folder / "accounts.key"
        self.node.run("openssl", "genrsa", "-out", str(key), "2048")
        kubelet = f'{self.kubelet_token},system:node:{KUBELETS},kubelet,"system:nodes"'
        tokens = f'{self.token},admin,admin,"system:masters"\n{kubelet}\n'
        (folder / "tokens").write_text(tokens, encoding="utf-8")
        (folder / "kubeconfig").write_text(self.kubeconfig, encoding="utf-8")
        (folder / "audit-policy").write_text(json.dumps(_AUDIT), encoding="utf-8")
        client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        etcd = [f"--data-dir={folder}/etcd", f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        # A test's data may be lost with the machine: no sync of every write.
        etcd += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        etcd += [f"--initial-cluster=default={peer}", "--unsafe-no-fsync"]
        self._spawn("etcd", "etcd", *etcd)
        self.start_api()
        if self._controllers:
            self._start_controllers()

    def _start_controllers(self) -> None:
        folder, key = self.folder, self.folder / "accounts.key"
        common = [f"--kubeconfig={folder}/kubeconfig", "--leader-elect=false", "--bind-address=127.0.0.1"]
        manager = [*common, f"--service-account-private-key-file={key}", f"--root-ca-file={self.authority}"]
        self._spawn("kube-controller-manager", str(self.programs / "kube-controller-manager"), *manager)
        self._spawn("kube-scheduler", str(self.programs / "kube-scheduler"), *common)

    def start_api(self, *more: str) -> None:
        """Start kube-apiserver and wait until it is ready.

        Args:
            more: arguments that it gets this time, such as feature gates.

        Raises:
            PluginError: it was not ready in time.
        """
        folder, key = self.folder, self.folder / "accounts.key"
        self._api = self._spawn(
            *("kube-apiserver", str(self.programs / "kube-apiserver"), "--etcd-servers=http://127.0.0.1:2379"),
            *(f"--secure-port={PORT}", f"--bind-address={self._listen}", f"--cert-dir={folder}/certificates"),
            *(f"--token-auth-file={folder}/tokens", f"--authorization-mode={self._authorization}"),
            *("--service-account-issuer=https://here.invalid", f"--service-account-key-file={key}"),
            *(f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.96.0.0/24"),
            *(f"--audit-policy-file={folder}/audit-policy", f"--audit-log-path={folder}/audit"),
            "--allow-privileged=true",
            *([] if self._accounts else ["--disable-admission-plugins=ServiceAccount"]),
            *more,
        )
        self._wait("a ready API", lambda: self.call("GET", "/readyz", raw=True) == "ok")

    def start_scheduler(self, name: str, extenders: Sequence[Object], requests: int = 50) -> "subprocess.Popen[bytes]":
        """Start one more kube-scheduler, for pods whose `schedulerName` is this name, with extenders of its own.

        Args:
            name: of the scheduler.
            extenders: as its configuration has them.
            requests: to the API server in a second, as `--kube-api-qps` says; 50 by default.
        """
        configuration = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": f"{self.folder}/kubeconfig", "qps": requests, "burst": 2 * requests},
            "leaderElection": {"leaderElect": False},
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 1,
            "profiles": [{"schedulerName": name}],
            "extenders": list(extenders),
        }
        file = self.folder / f"{name}.yaml"  # JSON is YAML too
        file.write_text(json.dumps(configuration), encoding="utf-8")
        program = str(self.programs / "kube-scheduler")
        return self._spawn(name, program, f"--config={file}", "--secure-port=0", "--v=2")

    @property
    def api_pid(self) -> int:
        """The process of kube-apiserver."""
        assert self._api is not None
        return self._api.pid

    def kill_api(self) -> None:
        """End kube-apiserver as a power cut would; `start_api` starts it again."""
        assert self._api is not None
        self._api.kill()
        self._api.wait()

    def _spawn(self, name: str, *command: str) -> "subprocess.Popen[bytes]":
        need_command(command)
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                self.node.command(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=ENV, cwd="/"
            )
        self._processes.callback(end, process, 10)
        return process

    def log(self, name: str) -> str:
        """Return what one of them logged so far."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def _wait(self, what: str, holds: Any) -> None:
        late = time.monotonic() + _PATIENCE
        while True:
            try:
                if holds():
                    return
            except (OSError, PluginError, http.client.HTTPException):
                pass
            if time.monotonic() > late:
                raise PluginError(
                    f"{what} did not come true within {_PATIENCE:g} s:\n{self.log('kube-apiserver')[-4000:]}"
                )
            time.sleep(0.1)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: str = "application/json",
        raw: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Call the API and return the object that it answers, or with `raw` the text; `headers` may say who asks.

        Raises:
            PluginError: it refused.
        """
        with self.node.netns.entered():  # the connection stays in the namespace that it was opened in
            connection = http.client.HTTPSConnection("127.0.0.1", PORT, timeout=10, context=TRUSTING)
            connection.connect()
        try:
            sent = {"Authorization": f"Bearer {self.token}", "Content-Type": content, **(headers or {})}
            connection.request(method, path, json.dumps(body) if body is not None else None, sent)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= http.client.BAD_REQUEST:
            raise PluginError(f"{method} {path} ended with {answer.status}: {text}")
        return text if raw else json.loads(text)

    def audited(self) -> Iterator[tuple[tuple[str, str, str], int]]:
        """Yield what ServiceAccounts have asked for: group, resource and verb, and the code of the answer."""
        for line in (self.folder / "audit").read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if (about := event.get("objectRef")) is not None:
                resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
                yield (about.get("apiGroup", ""), resource, event["verb"]), event["responseStatus"]["code"]

    def pod(self, name: str) -> Object:
        """Return a pod.

        Raises:
            PluginError: there is none.
        """
        return dict(self.call("GET", f"/api/v1/namespaces/default/pods/{name}"))

    def events(self, about: str) -> list[Object]:
        """Return the events about objects of a name: the API server and controllers write some about no name, too."""
        return list(self.call("GET", f"/apis/events.k8s.io/v1/events?fieldSelector=regarding.name%3D{about}")["items"])

    def place(self, name: str) -> str:
        """Return the node of a pod; empty while it waits, and "gone" once it was evicted."""
        try:
            return str(self.pod(name)["spec"].get("nodeName", ""))
        except PluginError:
            return "gone"

    def unplaced(self, name: str) -> str:
        """Return why a pod waits, as the scheduler has told."""
        found = self.pod(name)["status"].get("conditions") or []
        return next((entry["message"] for entry in found if entry.get("reason") == "Unschedulable"), "")

    def schedule(self, manifest: Mapping[str, Any]) -> None:
        """Create a pod that was written for `pod()`, without a node: that is the scheduler's to choose."""
        spec = {"dnsPolicy": "Default", "enableServiceLinks": False, **manifest["spec"]}
        self.call("POST", "/api/v1/namespaces/default/pods", {**manifest, "spec": spec})

    def delete(self, name: str) -> None:
        """Ask for the end of a pod."""
        self.call("DELETE", f"/api/v1/namespaces/default/pods/{name}")

    def scheduled(self) -> list[str]:
        """Return the names of all pods that are not gone yet."""
        return [item["metadata"]["name"] for item in self.call("GET", "/api/v1/namespaces/default/pods")["items"]]

    def close(self) -> None:
        """End all, the last first."""
        self._processes.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
