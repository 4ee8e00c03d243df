"""Masks secrets in texts, in every form in which they may appear.

Owns: the forms of a secret (as it is, its lines, base64, URL-quoted, hexadecimal, escaped once or twice as in JSON or
in a repr), and the secrets of mounted volumes: `unmount` carries none, but its errors may.
Refuses: to write a secret anywhere: they are kept in memory, until the volume is unmounted.
"""

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Self
from urllib.parse import quote, quote_plus

from nodeplug.contract.values import Secrets

MASK: Final = "***"
_FROM: Final = 4
_KEPT: Final = 4096
"""Mounts per driver whose secrets are remembered: a mount that fails permanently is never unmounted."""
_BYTES: Final = 8 << 20
"""Bytes of them per driver, besides those of the newest mount; a Secret of Kubernetes has 1 MiB at most."""
_LOGGED: Final = 512
"""Secrets that are looked for in what plugins log; each has some twenty forms, and one for each line."""
_LOGGED_BYTES: Final = 4096
"""Bytes of such a secret."""
_LOGGED_TOGETHER: Final = 512 << 10
"""Bytes of all such secrets, so that their forms have some tens of MiB at most."""
_LINE_FROM: Final = 16
"""Bytes of a line of a secret that is masked alone; a shorter one may be a word."""
_LINES: Final = 64
"""Lines of a secret that are masked alone."""
_INSIDE_FROM: Final = 6
"""Characters of a secret inside of a text in base64: fewer would be found where it is not."""
_SHORTEST: Final = 4
"""Bytes of a secret that one character of a text may stand for (UTF-8); no other form of a whole one is shorter."""
_STARTS: Final = (24, 4)
"""Lengths of the prefixes by which forms are found. Many keys begin alike, so long forms have a long prefix."""


def redact(text: str, secrets: Secrets) -> str:
    """Mask every secret value of at least four bytes in a text, in any form."""
    return _Forms.of(secrets.values(), _SHORTEST * len(text)).mask(text)


@dataclass(frozen=True, slots=True)
class _Forms:
    """Forms of secrets by their first characters: a search does not take longer when there are more of them."""

    by_start: dict[str, set[str]]
    short: frozenset[str]

    @classmethod
    def of(cls, values: Iterable[bytes], longest: float = math.inf) -> Self:
        """Make the forms of secrets. Of one with more than `longest` bytes, only its lines can be in the text."""
        by_start: dict[str, set[str]] = {}
        short: set[str] = set()
        for value in values:
            for form in chain(_forms(value) if len(value.strip()) <= longest else (), _forms_of_lines(value)):
                start = next((length for length in _STARTS if length <= len(form)), 0)
                (by_start.setdefault(form[:start], set()) if start else short).add(form)
        return cls(by_start, frozenset(short))

    def mask(self, text: str) -> str:
        """Mask what is found."""
        parts, done = [], 0
        for start, end in self._places(text):
            parts += [text[done:start], MASK]
            done = end
        return "".join([*parts, text[done:]])

    def _places(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield from where to where something is; forms that overlap are one."""
        start = end = 0
        for place in range(len(text) if self.by_start or self.short else 0):
            length = max((len(form) for form in self._near(text, place) if text.startswith(form, place)), default=0)
            if length and place >= end:
                if end:
                    yield start, end
                start = place
            end = max(end, place + length) if length else end
        if end:
            yield start, end

    def _near(self, text: str, place: int) -> Iterator[str]:
        """Yield the forms whose prefix is at one place of a text."""
        for length in _STARTS:
            yield from self.by_start.get(text[place : place + length], ())
        yield from self.short


def _forms(value: bytes) -> Iterator[str]:
    # A secret made from a file often ends with a newline, which is stripped before use.
    for whole in {value, value.strip()}:
        if len(whole) < _FROM:  # masking every "a" in a sentence would reveal the secret
            continue
        yield from _encoded(whole)
        for form in _escaped(whole):
            yield from (form, json.dumps(form)[1:-1], repr(form)[1:-1])
        for safe in ("/", ""):
            yield from _both_cases(quote(whole, safe=safe))
            yield from _both_cases(quote_plus(whole, safe=safe))


def _forms_of_lines(value: bytes) -> Iterator[str]:
    """Yield the lines of a secret of several, as a log shows a key; not the marks of PEM, which are no secret."""
    lines = value.strip().split(b"\n", _LINES)[:_LINES]
    if len(lines) > 1:
        for line in map(bytes.strip, lines):
            if len(line) >= _LINE_FROM and not line.startswith(b"-----"):
                text = line.decode("utf-8", "replace")
                yield from (text, repr(text)[1:-1])


def _escaped(whole: bytes) -> Iterator[str]:
    text = whole.decode("utf-8", "replace")
    yield from (text, repr(text)[1:-1], repr(whole)[2:-1], text.encode("unicode_escape").decode())
    yield from (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])


def _encoded(whole: bytes) -> Iterator[str]:
    for encode in (base64.standard_b64encode, base64.urlsafe_b64encode):
        form = encode(whole).decode()
        yield from (form, form.rstrip("="), quote(form, safe=""))
        for before in range(3):
            inner = _inside_base64(whole, before, encode)
            if len(inner) >= _INSIDE_FROM:
                yield inner
    yield from (whole.hex(), whole.hex().upper())
    yield from (whole.hex(separator) for separator in ":- ")


def _inside_base64(whole: bytes, before: int, encode: Callable[[bytes], bytes]) -> str:
    """Return the characters of a secret inside of a longer text in base64, such as a password behind a name.

    Args:
        whole: the secret.
        before: how many bytes of the text are before it, modulo three.
        encode: the alphabet.
    """
    first, last = -(-before * 8 // 6), (before + len(whole)) * 8 // 6  # the others are characters of neighbours, too
    return encode(bytes(before) + whole).decode()[first:last]


def _both_cases(quoted: str) -> Iterator[str]:
    """Yield a percent-encoded text with the digits of its escapes in either case (RFC 3986, section 2.1)."""
    first, *rest = quoted.split("%")
    yield quoted
    yield "%".join([first, *(part[:2].lower() + part[2:] for part in rest)])


@dataclass(slots=True)
class Known:
    """The secrets of the volumes on this node, by driver and target. Event loop only, but for `hide`.

    A plugin may use any of them while it serves any of its volumes, so its errors are masked for all of them. The
    oldest are forgotten when there are too many, or too large ones.
    """

    _secrets: dict[str, dict[str, Secrets]] = field(default_factory=dict)
    _sizes: dict[str, int] = field(default_factory=dict)
    _changes: int = 0
    _hidden: tuple[int, _Forms] = (0, _Forms({}, frozenset()))
    """The forms that `hide` looks for, and after how many changes they were made."""

    def remember(self, driver: str, target: str, secrets: Secrets) -> None:
        """Keep the secrets of one mount as long as errors may mention them."""
        if not secrets:
            return
        self.forget(driver, target)
        kept = self._secrets.setdefault(driver, {})
        kept[target] = secrets
        self._changes += 1
        self._sizes[driver] = self._sizes.get(driver, 0) + _size(secrets)
        while len(kept) > 1 and (len(kept) > _KEPT or self._sizes[driver] - _size(secrets) > _BYTES):
            self.forget(driver, next(iter(kept)))

    def forget(self, driver: str, target: str) -> None:
        """Forget the secrets of a volume that was unmounted, if any."""
        gone = self._secrets.get(driver, {}).pop(target, None)
        if gone is not None:
            self._sizes[driver] -= _size(gone)
            self._changes += 1

    def hide(self, text: str) -> str:
        """Mask secrets in a text that a plugin logs: the newest of all drivers, within bounds.

        Any thread may call it, but not the event loop: the first call after a mount encodes all of these secrets.
        """
        made, forms = self._hidden
        if made != (changes := self._changes):
            kept = [secrets for each in tuple(self._secrets.values()) for secrets in tuple(each.values())[-_LOGGED:]]
            values = [value for secrets in kept for value in secrets.values() if len(value) <= _LOGGED_BYTES]
            forms = _Forms.of(_newest(values))
            self._hidden = changes, forms
        return forms.mask(text)

    def of(self, driver: str) -> Secrets:
        """Return every secret of a driver."""
        return _together(tuple(self._secrets.get(driver, {}).values()))

    def mask(self, driver: str) -> Callable[[str], str]:
        """Return a function that masks every secret of a driver in a text; `str` if there is none.

        It may be called in any thread, and takes long when there are many: keep it off the event loop.
        """
        kept = tuple(self._secrets.get(driver, {}).values())
        return (lambda text: redact(text, _together(kept))) if kept else str


def _newest(values: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the newest secrets, as many as are looked for in logs."""
    together = 0
    for value in values[: -_LOGGED - 1 : -1]:
        together += len(value)
        if together > _LOGGED_TOGETHER:
            return
        yield value


def _size(secrets: Secrets) -> int:
    return sum(map(len, secrets.values()))


def _together(kept: Iterable[Secrets]) -> Secrets:
    return Secrets({f"{number} {name}": one for number, each in enumerate(kept) for name, one in each.items()})
