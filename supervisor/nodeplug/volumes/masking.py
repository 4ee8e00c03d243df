"""Masks secrets in texts, in every form in which they may appear.

Owns: the forms of a secret (as it is, base64, URL-quoted, hexadecimal, escaped as in JSON or in a repr), and the
secrets of mounted volumes: `unmount` carries none, but its errors may.
Refuses: to write a secret anywhere: they are kept in memory, until the volume is unmounted.
"""

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import quote, quote_plus

from nodeplug.contract.values import Secrets

MASK: Final = "***"
_FROM: Final = 4
_KEPT: Final = 4096
"""Mounts per driver whose secrets are remembered: a mount that fails permanently is never unmounted."""


def redact(text: str, secrets: Secrets) -> str:
    """Mask every secret value of at least four bytes in a text, in any form."""
    forms = {form for value in secrets.values() for form in _forms(value)}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text


def _forms(value: bytes) -> Iterator[str]:
    # A secret made from a file often ends with a newline, which is stripped before use.
    for whole in {value, value.strip()}:
        if len(whole) < _FROM:  # masking every "a" in a sentence would reveal the secret
            continue
        yield from _encoded(whole)
        text = whole.decode("utf-8", "replace")
        yield from (text, repr(text)[1:-1], repr(whole)[2:-1], text.encode("unicode_escape").decode())
        yield from (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
        for safe in ("/", ""):
            yield from _both_cases(quote(whole, safe=safe))
            yield from _both_cases(quote_plus(whole, safe=safe))


def _encoded(whole: bytes) -> Iterator[str]:
    for encode in (base64.standard_b64encode, base64.urlsafe_b64encode):
        form = encode(whole).decode()
        yield from (form, form.rstrip("="), quote(form, safe=""))
    yield from (whole.hex(), whole.hex().upper())
    yield from (whole.hex(separator) for separator in ":- ")


def _both_cases(quoted: str) -> Iterator[str]:
    """Yield a percent-encoded text with the digits of its escapes in either case (RFC 3986, section 2.1)."""
    first, *rest = quoted.split("%")
    yield quoted
    yield "%".join([first, *(part[:2].lower() + part[2:] for part in rest)])


@dataclass(slots=True)
class Known:
    """The secrets of the volumes on this node, by driver and target. Event loop only.

    A plugin may use any of them while it serves any of its volumes, so its errors are masked for all of them.
    """

    _secrets: dict[str, dict[str, Secrets]] = field(default_factory=dict)

    def remember(self, driver: str, target: str, secrets: Secrets) -> None:
        """Keep the secrets of one mount as long as errors may mention them."""
        if not secrets:
            return
        kept = self._secrets.setdefault(driver, {})
        kept.pop(target, None)
        kept[target] = secrets
        while len(kept) > _KEPT:
            del kept[next(iter(kept))]

    def forget(self, driver: str, target: str) -> None:
        """Forget the secrets of a volume that was unmounted, if any."""
        self._secrets.get(driver, {}).pop(target, None)

    def of(self, driver: str) -> Secrets:
        """Return every secret of a driver."""
        kept = self._secrets.get(driver, {})
        return Secrets({f"{target} {name}": one for target, each in kept.items() for name, one in each.items()})

    def mask(self, driver: str) -> Callable[[str], str]:
        """Return a function that masks every secret of a driver in a text; `str` if there is none."""
        secrets = self.of(driver)
        return partial(redact, secrets=secrets) if secrets else str
