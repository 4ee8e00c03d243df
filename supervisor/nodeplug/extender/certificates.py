"""The certificate of a listening socket: read, read again when its files change, and when it ends.

Owns: the TLS context in force, why a newer certificate is not, and the time at which one should have been renewed.
Refuses: to make certificates, and to parse them: OpenSSL shakes hands with itself in memory, which also shows that the
key is the certificate's, and that a client that trusts it would take it for a server's.

A file that cannot be used never takes the place of one that can: certificates are often written in two steps.
"""

import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug.contract.errors import PluginError, TryAgain
from nodeplug.process.lane import Lane

_LIFE: Final = 10
"""The part of its life, one by so many, before whose beginning a certificate should have been renewed."""
_WEEK: Final = 7 * 86400.0
_NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME: when it ends is asked, not judged (x509_vfy.h)."""
_TURNS: Final = 8
"""Messages that each side may send in a handshake; TLS 1.3 needs two."""


class Unusable(PluginError):
    """A certificate that nobody can be served with; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A certificate that can be used.

    Attributes:
        context: for connections.
        not_before: seconds since the epoch at which it begins.
        not_after: and at which it ends.
    """

    context: ssl.SSLContext
    not_before: float
    not_after: float

    @property
    def renewal(self) -> float:
        """By when it should have been renewed: a tenth of its life, or a week, before its end."""
        return self.not_after - min((self.not_after - self.not_before) / _LIFE, _WEEK)


def load(certificate: str, key: str, client_ca: str = "") -> Loaded:
    """Read a certificate with its key, and the authorities of clients if there are any. May block.

    Raises:
        Unusable: nobody can be served with it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(lambda: context.load_cert_chain(certificate, key, _no_password), f"{certificate} with the key {key}")
    context.set_alpn_protocols(["http/1.1"])
    probed = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(lambda: probed.load_cert_chain(certificate, key, _no_password), f"{certificate} with the key {key}")
    began, ends = _life(certificate, probed)
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        _load(lambda: context.load_verify_locations(client_ca), f"client_ca {client_ca}")
    return Loaded(context, began, ends)


def _no_password() -> str:
    raise Unusable("its key has a password, which nobody can type here; store it without one, readable by root alone")


def _load(step: Callable[[], None], what: str) -> None:
    try:
        step()
    except PluginError as error:
        raise Unusable(f"{what} cannot be used: {error}") from None
    except (OSError, ValueError) as error:  # of OSError is ssl.SSLError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise Unusable(f"{what} cannot be used: {reason}; give PEM files of one pair") from None


def _life(certificate: str, server: ssl.SSLContext) -> tuple[float, float]:
    """Return when a certificate begins and ends."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    _load(lambda: client.load_verify_locations(certificate), certificate)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    try:
        for _ in range(_TURNS):
            for end in ends:
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        shown = ends[0].getpeercert() or {}
        return ssl.cert_time_to_seconds(str(shown["notBefore"])), ssl.cert_time_to_seconds(str(shown["notAfter"]))
    except (ssl.SSLError, ValueError, KeyError) as error:
        reason = getattr(error, "verify_message", None) or str(error)
        raise Unusable(f"{certificate} is no certificate of a server: {reason}") from None


@dataclass(slots=True)
class Certificates:
    """The certificate in force. Used from the event loop.

    Attributes:
        certificate: its file.
        key: the file of its key.
        client_ca: the file of the authorities of clients; empty: anybody is served.
        loaded: what is in force; None until there is one.
        problem: why the newest one is not in force; empty when it is.
    """

    certificate: str
    key: str
    client_ca: str
    loaded: Loaded | None = None
    problem: str = ""
    _seen: object = None
    _lane: Lane = field(init=False)

    def __post_init__(self) -> None:
        self._lane = Lane(f"the disk of the certificate {self.certificate}")

    async def look(self) -> None:
        """Read the files again if they have changed."""
        try:
            seen = await self._lane.run(self._look)
            if seen == self._seen:
                return
            self.loaded = await self._lane.run(lambda: load(self.certificate, self.key, self.client_ca))
            self._seen, self.problem = seen, ""
        except TryAgain as error:
            self.problem = str(error)
        except Unusable as error:
            self.problem = f"{error}; the former one stays" if self.loaded is not None else str(error)

    def _look(self) -> object:
        found: list[tuple[int, int, int] | None] = []
        for path in filter(None, (self.certificate, self.key, self.client_ca)):
            try:
                status = Path(path).stat()
            except OSError:
                found.append(None)
            else:
                found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return found

    @property
    def trouble(self) -> str:
        """What is wrong with it, or will be soon; empty if nothing is."""
        if self.problem or self.loaded is None:
            return self.problem
        now, ends = time.time(), time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.loaded.not_after))
        if now >= self.loaded.not_after:
            return f"the certificate {self.certificate} has expired at {ends}; put a new one there"
        if now >= self.loaded.renewal:
            return f"the certificate {self.certificate} expires at {ends}; put a new one there"
        return ""

    def context(self) -> ssl.SSLContext:
        """Return what a new connection is encrypted with; it must have been loaded."""
        if self.loaded is None:
            raise Unusable(self.problem or "no certificate was read yet")
        return self.loaded.context
