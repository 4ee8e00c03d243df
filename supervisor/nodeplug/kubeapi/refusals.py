"""What the API server refuses, and a connection that fails, as errors of the tree.

Owns: from a response to one error: what was asked, what the server said, and what would help.
Refuses: to try again (`client`), and any text about Secrets: the server quotes values that it refuses.

Source: k8s.io/apimachinery/pkg/apis/meta/v1, `Status` and `StatusReason`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from nodeplug.contract.errors import AlreadyExists, InvalidRequest, NotFound, PluginError, TryAgain, Uncertain, clip
from nodeplug.contract.inputs import API_ANSWER
from nodeplug.kubeapi.resources import SECRETS, Resource

_SHOWN: Final = 1000
_FAULTS: Final = 500
"""From this status on, a failure is the server's."""
_MANAGER: Final = re.compile(r'conflict with "([^"]*)"')
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}


class Unauthorized(PluginError):
    """The API server does not know who asks: the credentials are wrong, or have expired."""


class Forbidden(PluginError):
    """The API server knows who asks, and that they may not; the message has the missing rule."""


class Conflict(TryAgain):
    """The object has changed since it was read, or a precondition does not hold: read it again and decide anew."""


class FieldConflict(Conflict):
    """Others have set fields that were to be applied (server-side apply).

    Args:
        message: the reason.
        fields: who has each, by its path, such as `.metadata.labels.example.com/a`.
    """

    def __init__(self, message: str, *, fields: Mapping[str, str]) -> None:
        super().__init__(message)
        self.fields = fields


class Expired(TryAgain):
    """The server has forgotten a resource version or a page: list again (HTTP 410)."""


class TooManyRequests(TryAgain):
    """The server is busy.

    Args:
        message: the reason.
        retry_after: seconds after which it wants to be asked again.
    """

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unreachable(TryAgain):
    """No connection, or it broke off before an answer; nothing was changed, or only asked."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for, in the words of roles.

    Attributes:
        verb: get, list, watch, create, update, patch or delete.
        resource: of which kind.
        namespace: where; empty for the whole cluster.
        name: of the object; empty for all.
        part: a subresource.
    """

    verb: str
    resource: Resource
    namespace: str = ""
    name: str = ""
    part: str = ""

    def __str__(self) -> str:
        """Return it in words, such as `get pods/status default/web`."""
        what = self.resource.plural + (f"/{self.part}" if self.part else "")
        where = "/".join(filter(None, (self.namespace, self.name)))
        return f"{self.verb} {what} {where}".rstrip()

    @property
    def reads(self) -> bool:
        """It changes nothing, so it may be asked twice."""
        return self.verb in {"get", "list", "watch"}

    @property
    def rule(self) -> str:
        """The rule of a Role that allows it."""
        what = self.resource.plural + (f"/{self.part}" if self.part else "")
        kind = f"Role in namespace {self.namespace}, or a ClusterRole" if self.namespace else "ClusterRole"
        return f'{kind}, with {{apiGroups: ["{self.resource.group}"], resources: ["{what}"], verbs: ["{self.verb}"]}}'


def refusal(asked: Asked, code: int, headers: Mapping[str, str], body: bytes) -> PluginError:
    """Return the error that a response means.

    Args:
        asked: what for.
        code: the HTTP status, or that of a Status object in a watch.
        headers: by name in lower case.
        body: a Status object in JSON, or whatever something between us and the server wrote.
    """
    status = status_in(body)
    said = _said(asked, code, status)
    reason = status.get("reason")
    if code == HTTPStatus.UNAUTHORIZED:
        return Unauthorized(f"{said}; its credentials are wrong or have expired: look at the user in the kubeconfig")
    if code == HTTPStatus.FORBIDDEN and reason in {None, "", "Forbidden"}:
        return Forbidden(f"{said}; if a rule is missing, bind whoever asks to a {asked.rule}")
    if code == HTTPStatus.CONFLICT:
        if fields := _owned_by_others(status):
            return FieldConflict(said, fields=fields)
        return AlreadyExists(said) if reason == "AlreadyExists" else Conflict(said)
    if code == HTTPStatus.TOO_MANY_REQUESTS:
        return TooManyRequests(said, retry_after=retry_after(code, headers) or 1.0)
    return _REFUSALS.get(code, TryAgain if code >= _FAULTS else InvalidRequest)(said)


_REFUSALS: Final[Mapping[int, Callable[[str], PluginError]]] = {
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.GONE: Expired,
    HTTPStatus.FORBIDDEN: PluginError,
    HTTPStatus.GATEWAY_TIMEOUT: Uncertain,
}
"""By status; 504 is also what the API server says of a write that it may have done."""


def _owned_by_others(status: Mapping[str, Any]) -> Mapping[str, str]:
    """Return who has each field that is in the way of an apply (managedfields/internal/conflict.go)."""
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    fields: dict[str, str] = {}
    for cause in causes if isinstance(causes, list) else ():
        if isinstance(cause, dict) and cause.get("reason") == "FieldManagerConflict":
            manager = _MANAGER.search(str(cause.get("message", "")))
            fields[str(cause.get("field", ""))] = manager[1] if manager is not None else "somebody else"
    return fields


def status_in(body: bytes) -> Mapping[str, Any]:
    """Return the Status object that a body is, or nothing."""
    try:
        document = API_ANSWER.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) and document.get("kind") == "Status" else {}


def _said(asked: Asked, code: int, status: Mapping[str, Any]) -> str:
    about = "" if asked.resource == SECRETS else str(status.get("message", ""))
    phrase = _PHRASES.get(code, "")
    text = clip(" ".join(about.split()), _SHOWN) or f"{code} {phrase}".rstrip()
    return f"the API server refused to {asked}: {text}"


def retry_after(code: int, headers: Mapping[str, str]) -> float | None:
    """Return the seconds after which the server wants the same request again; None if it does not ask for it.

    Source: client-go, rest/with_retry.go: 429 or a failure of the server, and Retry-After in whole seconds.
    """
    if code != HTTPStatus.TOO_MANY_REQUESTS and code < _FAULTS:
        return None
    value = headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdigit() and len(value) < 6 else None
