"""Secrets in texts: whatever form one is in, it is masked."""

import base64
import json
import shlex
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus, urlencode

import pytest

from nodeplug.contract.values import Secrets
from nodeplug.volumes import masking
from nodeplug.volumes.masking import MASK, Known, redact

SECRETS = [
    b"hunter2",
    "p\u00e4ss/w ord&\"'<1>+~".encode(),
    b"line one\nline two\n",
    b"\x00\xff\xfe binary",
    b"a/b?c=d%20e~f",
]


def readable(secret: bytes) -> str:
    return secret.decode("utf-8", "replace")


FORMS: dict[str, Callable[[bytes], str]] = {
    "plain": readable,
    "stripped": lambda secret: readable(secret.strip()),
    "base64": lambda secret: base64.b64encode(secret).decode(),
    "base64 without padding": lambda secret: base64.b64encode(secret).decode().rstrip("="),
    "base64 for URLs": lambda secret: base64.urlsafe_b64encode(secret).decode(),
    "hexadecimal": lambda secret: secret.hex(),
    "HEXADECIMAL": lambda secret: secret.hex().upper(),
    "hexadecimal in pairs": lambda secret: secret.hex(":"),
    "quoted": quote,
    "quoted wholly": lambda secret: quote(secret, safe=""),
    "quoted in lower case": lambda secret: quote(secret).lower() if readable(secret).islower() else quote(secret),
    "quoted with plus": quote_plus,
    "a form": lambda secret: urlencode({"password": secret}),
    "JSON": lambda secret: json.dumps({"password": readable(secret)}),
    "JSON in UTF-8": lambda secret: json.dumps([readable(secret)], ensure_ascii=False),
    "repr": lambda secret: repr(readable(secret)),
    "repr of bytes": repr,
    "an argv": lambda secret: str(["mount", "-o", f"password={readable(secret)}"]),
    "JSON in JSON": lambda secret: json.dumps(json.dumps({"password": readable(secret)})),
    "repr of a repr": lambda secret: repr([repr(secret)]),
    "JSON in a repr": lambda secret: repr(json.dumps(readable(secret))),
    "base64 in a URL": lambda secret: quote(base64.b64encode(secret), safe=""),
}


@pytest.mark.parametrize("secret", SECRETS, ids=range(len(SECRETS)))
@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_masked_in_every_form(form: str, secret: bytes) -> None:
    told = FORMS[form](secret)
    masked = redact(f"login failed ({told}), try again", Secrets({"password": secret}))
    assert MASK in masked
    assert told not in masked
    assert masked.startswith("login failed (")
    assert masked.endswith("), try again")


@pytest.mark.parametrize("after", [b"", b"@", b":x", b"@host"])
@pytest.mark.parametrize("before", [b"user", b"user:", b"a user"])
def test_no_whole_character_of_a_secret_is_left_of_a_longer_text_in_base64(before: bytes, after: bytes) -> None:
    secret = b"correct horse battery staple"
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        masked = redact(f"Authorization: Basic {encode(before + secret + after).decode()}", Secrets({"p": secret}))
        told = masked.partition("Basic ")[2]
        left, _, right = told.partition(MASK)
        assert MASK in told
        assert len(left) <= -(-len(before) * 8 // 6)
        assert len(right) <= len(encode(b"xx" + after))


def test_each_line_of_a_key_is_masked_and_its_marks_are_not() -> None:
    lines = ["-----BEGIN PRIVATE KEY-----", *(f"MIIEvQIBADANBgkqhkiG9w0BAQEF{number:04}" for number in range(30))]
    secrets = Secrets({"key": "\n".join([*lines, "-----END PRIVATE KEY-----", ""]).encode()})
    assert [redact(f"it wrote: {line}", secrets) for line in lines[1:]] == ["it wrote: ***"] * 30
    assert redact(lines[0], secrets) == lines[0]


def test_a_short_line_of_a_secret_does_not_shred_the_message() -> None:
    assert redact("cannot mount a file", Secrets({"p": b"mount a file\nhunter2-hunter2"})) == "cannot mount a file"


def test_a_secret_on_a_command_line_is_masked() -> None:
    assert redact(shlex.join(["login", "-p", "hunter2"]), Secrets({"p": b"hunter2"})) == "login -p ***"


def test_a_short_secret_does_not_shred_the_message() -> None:
    assert redact("cannot mount a volume", Secrets({"flag": b"a"})) == "cannot mount a volume"


def test_a_secret_with_a_newline_is_masked_without_it_too() -> None:
    assert redact("login failed for hunter2", Secrets({"password": b"hunter2\n"})) == "login failed for ***"


def test_of_secrets_that_overlap_nothing_is_left() -> None:
    secrets = Secrets({"one": b"abcdef", "two": b"defghijkl", "three": b"xyz1"})
    assert redact("<abcdefghijkl>xyz1xyz1", secrets) == "<***>******"


def test_a_secret_of_few_characters_of_many_bytes_is_masked() -> None:
    assert redact("by \U0001f511 it", Secrets({"p": "\U0001f511".encode()})) == f"by {MASK} it"


def test_a_secret_inside_another_leaves_nothing_of_the_longer_one() -> None:
    assert redact("hunter2-and-more", Secrets({"one": b"hunter2", "two": b"hunter2-and-more"})) == "***"


def test_secrets_of_a_driver_are_known_until_its_volumes_are_unmounted() -> None:
    known = Known()
    known.remember("acme/disk", "/a", Secrets({"password": b"hunter2"}))
    known.remember("acme/disk", "/b", Secrets({"password": b"hunter3"}))
    known.remember("other", "/a", Secrets({"password": b"hunter4"}))
    known.forget("acme/disk", "/a")
    known.forget("acme/disk", "/a")
    assert redact("hunter2 hunter3 hunter4", known.of("acme/disk")) == "hunter2 *** hunter4"


def test_secrets_are_kept_within_a_bound_in_bytes_and_the_newest_stay() -> None:
    known, large = Known(), b"x" * (1 << 20)
    for number in range(20):
        known.remember("acme/disk", f"/{number}", Secrets({"key": large, "password": f"hunter{number}".encode()}))
    kept = [number for number in range(20) if redact(f"hunter{number}", known.of("acme/disk")) == MASK]
    assert kept == list(range(kept[0], 20))
    assert 1 <= len(kept) <= 8


def test_one_mount_with_more_secrets_than_the_bound_is_masked_all_the_same() -> None:
    known = Known()
    known.remember("acme/disk", "/a", Secrets({"key": b"x" * (20 << 20), "password": b"hunter2"}))
    assert redact("hunter2", known.of("acme/disk")) == MASK


def test_what_a_plugin_logs_is_masked_for_every_driver_while_a_volume_is_mounted() -> None:
    known = Known()
    assert known.hide("hunter2") == "hunter2"
    known.remember("a/b", "/t", Secrets({"password": b"hunter2"}))
    known.remember("c/d", "/u", Secrets({"token": b"another"}))
    assert known.hide("hunter2 and another") == f"{MASK} and {MASK}"
    known.forget("a/b", "/t")
    assert known.hide("hunter2 and another") == f"hunter2 and {MASK}"
    known.forget("c/d", "/u")
    assert known.hide("hunter2 and another") == "hunter2 and another"


def test_a_secret_that_is_mounted_while_a_line_is_masked_is_masked_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Known()
    known.remember("a/b", "/t", Secrets({"password": b"hunter2"}))
    choose = masking._newest

    def mounted_meanwhile(values: Any) -> Any:
        known.remember("c/d", "/u", Secrets({"token": b"another"}))
        return choose(values)

    with monkeypatch.context() as patched:
        patched.setattr(masking, "_newest", mounted_meanwhile)
        known.hide("")
    assert known.hide("hunter2 and another") == f"{MASK} and {MASK}"
