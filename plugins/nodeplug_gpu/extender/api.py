"""What the extender asks of the API server: four requests.

Owns: a Binding and how its success is known, and reading one pod, one node, and the pods that are bound and wait.
Refuses: to watch, to retry (kube-scheduler does), and to keep connections or credentials.
"""

import http.client
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

from nodeplug import NotReady, PluginError, TryAgain, Uncertain
from nodeplug_gpu.extender.config import ApiServer

_TIMEOUT: Final = 1.5
"""Seconds for one request: a Binding and the look at its pod together take less than a hook may."""
_SHOWN: Final = 300
Object = Mapping[str, Any]


class Refused(PluginError):
    """The API server answered with another status than success.

    Attributes:
        status: of the answer.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """One API server. Any thread may ask.

    Args:
        config: where it is, and as whom it is asked.
    """

    def __init__(self, config: ApiServer) -> None:
        self._config = config

    def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Bind a pod to a node; succeed if it is bound to that node already, also by an earlier call of this.

        Raises:
            NotReady: the API server cannot be asked.
            PluginError: it is not bound to it.
            Uncertain: nobody knows whether it is.
        """
        metadata = {"name": name, "namespace": namespace, "uid": uid}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        try:
            self._ask("POST", f"{_pod_path(namespace, name)}/binding", body)
        except NotReady:
            raise  # it was not even asked
        except PluginError as error:
            self._look(namespace, name, uid, node, error)

    def _look(self, namespace: str, name: str, uid: str, node: str, error: PluginError) -> None:
        """Return if a pod is bound to a node in spite of an error; raise that error if it is not."""
        try:
            found = self.pod(namespace, name)
        except PluginError as second:
            raise Uncertain(
                f"nobody knows whether pod {namespace}/{name} is bound to {node}: {error.message}; and it cannot be "
                f"read: {second.message}"
            ) from error
        if found is None or uid_of(found) != uid or node_of(found) != node:
            raise error

    def pod(self, namespace: str, name: str) -> Object | None:
        """Return a pod; None if there is none."""
        return self._find(_pod_path(namespace, name))

    def node(self, name: str) -> Object | None:
        """Return a Node; None if there is none."""
        return self._find(f"/api/v1/nodes/{quote(name, safe='')}")

    def bound_and_pending(self) -> Sequence[Object]:
        """Return the pods that are bound to a node and whose containers do not run yet, those bound first in front."""
        query = urlencode({"fieldSelector": "status.phase=Pending,spec.nodeName!=", "resourceVersion": "0"})
        found = self._ask("GET", f"/api/v1/pods?{query}")
        return sorted(found.get("items") or (), key=_bound_at)

    def _find(self, path: str) -> Object | None:
        try:
            return self._ask("GET", path)
        except Refused as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def _ask(self, method: str, path: str, body: Object | None = None) -> Object:
        data = json.dumps(body).encode() if body is not None else None
        url = f"{self._server()}{path}"
        try:
            opener, headers = self._opener(), self._headers()
        except (OSError, ValueError) as error:
            raise NotReady(f"a file of [api] cannot be used: {error}") from None
        asked = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - it is https
        try:
            with opener.open(asked, timeout=_TIMEOUT) as answer:
                found: Object = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(f"the API server refuses: {_message(error.read())}", error.code) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise TryAgain(f"the API server does not answer: {error}") from None

    def _opener(self) -> urllib.request.OpenerDirector:
        trust = ssl.create_default_context(cafile=self._config.ca)
        if self._config.certificate is not None:
            trust.load_cert_chain(self._config.certificate, self._config.key)
        # A proxy of the environment is for the world outside the cluster.
        no_proxy = urllib.request.ProxyHandler({})
        return urllib.request.build_opener(no_proxy, urllib.request.HTTPSHandler(context=trust))

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if (token := self._config.token_file) is not None:
            headers["Authorization"] = f"Bearer {token.read_text(encoding='ascii').strip()}"
        return headers

    def _server(self) -> str:
        if self._config.server:
            return self._config.server
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if not host:
            raise NotReady("this is no pod: name the API server as `server` in [api]")
        return f"https://{f'[{host}]' if ':' in host else host}:{port or '443'}"


def uid_of(pod: Object) -> str:
    """Return a pod's UID."""
    return str((pod.get("metadata") or {}).get("uid", ""))


def node_of(pod: Object) -> str:
    """Return the name of the node to which a pod is bound; empty if it is not."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def is_finished(pod: Object) -> bool:
    """Whether a pod holds nothing for ever: its containers have ended, or kubelet has rejected it."""
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def _pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


def _bound_at(pod: Object) -> tuple[str, str]:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    times = [str(one.get("lastTransitionTime")) for one in conditions if one.get("type") == "PodScheduled"]
    return max(times, default=""), str((pod.get("metadata") or {}).get("creationTimestamp", ""))


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])[:_SHOWN]
    except (ValueError, KeyError, TypeError):
        return body[:_SHOWN].decode(errors="replace")
