"""Tokens and certificates: shown, read again, printed by a program, and never told."""

import asyncio
import base64
import json
import ssl
import stat
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.kubeapi.conftest import Signed
from tests.unit.kubeapi.scripted import Scripted, refuse, respond

from nodeplug import PluginError
from nodeplug.contract.errors import TryAgain
from nodeplug.kubeapi.access import Access, ExecPlugin, Material
from nodeplug.kubeapi.client import Bounds, Client
from nodeplug.kubeapi.credentials import Credentials, find
from nodeplug.kubeapi.refusals import Unreachable
from nodeplug.kubeapi.resources import PODS

Work = Callable[[Scripted], Awaitable[Any]]
VERSION = "client.authentication.k8s.io/v1"


def serve(signed: Signed, work: Work, *answers: bytes) -> Scripted:
    """Do something beside a server with a certificate."""

    async def go() -> Scripted:
        async with Scripted(list(answers), tls=signed.server) as server:
            await work(server)
            return server

    return asyncio.run(go())


async def ask(client: Client, times: int = 1) -> None:
    async with client:
        for _ in range(times):
            await client.get(PODS, "a", "b")


def refused(access: Access) -> str:
    """Return why nothing can be shown."""

    async def go() -> str:
        with pytest.raises(PluginError) as caught:
            await Credentials(access).show()
        return str(caught.value)

    return asyncio.run(go())


def program(folder: Path, script: str) -> ExecPlugin:
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return ExecPlugin((str(path),))


def printing(**status: str) -> str:
    return "echo '" + json.dumps({"kind": "ExecCredential", "apiVersion": VERSION, "status": status}) + "'"


def tokens(server: Scripted) -> list[str]:
    return [asked.headers.get("authorization", "").removeprefix("Bearer ") for asked in server.asked]


# --- the server


def test_a_server_of_the_authority_is_believed(signed: Signed) -> None:
    async def work(server: Scripted) -> None:
        await ask(server.client_of(server.over_tls(signed.certificate("authority"), token="geheim")))

    assert tokens(serve(signed, work, respond(200, {}))) == ["geheim"]


def test_a_stranger_never_sees_the_token(signed: Signed) -> None:
    async def work(server: Scripted) -> None:
        with pytest.raises(Unreachable, match=r"not to be trusted.*certificate-authority"):
            await ask(server.client_of(server.over_tls(signed.certificate("client"), token="geheim")))

    assert serve(signed, work, respond(200, {})).asked == []


def test_the_name_of_a_server_is_checked_and_may_be_another_one(signed: Signed) -> None:
    async def work(server: Scripted) -> None:
        access = server.over_tls(signed.certificate("authority"))
        await ask(server.client_of(replace(access, server_name="kubernetes")))
        with pytest.raises(Unreachable, match="not to be trusted"):
            await ask(server.client_of(replace(access, server_name="elsewhere")))

    serve(signed, work, respond(200, {}))


def test_a_server_is_not_checked_where_the_file_says_so(signed: Signed) -> None:
    async def work(server: Scripted) -> None:
        await ask(server.client_of(server.over_tls(b"", insecure=True)))

    assert len(serve(signed, work, respond(200, {})).asked) == 1


# --- the client


def test_a_client_shows_its_certificate(signed: Signed) -> None:
    seen: list[Any] = []

    async def tell(writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("peercert")["subject"])
        writer.write(respond(200, {}))

    async def go() -> None:
        async with Scripted([tell], tls=signed.server) as server:
            mine = Material(signed.certificate("client")), Material(file=signed.folder / "client.key")
            access = server.over_tls(signed.certificate("authority"), certificate=mine[0], key=mine[1])
            await ask(server.client_of(access))

    asyncio.run(go())
    assert seen == [((("commonName", "client"),),)]


@pytest.mark.parametrize(
    ("certificate", "key"), [("client", "other"), ("client", ""), ("", "client"), ("authority", "client")]
)
def test_a_certificate_and_a_key_that_do_not_fit_are_refused(signed: Signed, certificate: str, key: str) -> None:
    said = refused(
        Access(
            "https://127.0.0.1:1",
            certificate=Material(signed.certificate(certificate) if certificate else b""),
            key=Material(signed.key(key) if key else b""),
            source="the file",
        )
    )
    assert said.startswith("the file: the client-certificate and its key")
    assert "PRIVATE" not in said


def test_a_key_with_a_password_is_refused_and_no_terminal_is_asked(signed: Signed, tmp_path: Path) -> None:
    from tests.unit.kubeapi.conftest import openssl  # noqa: PLC0415 - here alone

    openssl(signed.folder, "ec", "-in", "client.key", "-aes128", "-passout", "pass:x", "-out", str(tmp_path / "locked"))
    certificate = Material(signed.certificate("client"))
    locked = Access("https://127.0.0.1:1", certificate=certificate, key=Material(file=tmp_path / "locked"), source="f")
    assert "do not fit together" in refused(locked)


def test_an_authority_that_is_no_certificate_is_refused() -> None:
    assert "no certificate in PEM" in refused(Access("https://127.0.0.1:1", authority=Material(b"junk"), source="f"))


# --- what changes


def test_a_token_that_was_renewed_is_used(signed: Signed, tmp_path: Path) -> None:
    file = tmp_path / "token"

    async def work(server: Scripted) -> None:
        access = server.over_tls(signed.certificate("authority"), token_file=file)
        async with Client(Credentials(access, age=0.0), Bounds()) as client:
            for token in ("first\n", "second\n"):
                file.write_text(token)
                await client.get(PODS, "a", "b")

    server = serve(signed, work, *[respond(200, {})] * 2)
    assert tokens(server) == ["first", "second"]
    assert server.connections == 1  # the token is of the request, not of the connection


def test_a_token_that_the_server_refuses_is_read_again_at_once(signed: Signed, tmp_path: Path) -> None:
    file = tmp_path / "token"

    async def work(server: Scripted) -> None:
        access = server.over_tls(signed.certificate("authority"), token_file=file)
        file.write_text("first")
        async with server.client_of(access) as client:
            await client.get(PODS, "a", "b")
            file.write_text("second")
            await client.get(PODS, "a", "b")

    server = serve(signed, work, respond(200, {}), refuse(401, "Unauthorized"), respond(200, {}))
    assert tokens(server) == ["first", "first", "second"]


def test_a_certificate_that_was_renewed_is_shown_on_a_new_connection(signed: Signed, tmp_path: Path) -> None:
    file = tmp_path / "both"

    async def work(server: Scripted) -> None:
        mine = Material(file=file)
        access = server.over_tls(signed.certificate("authority"), certificate=mine, key=mine)
        async with Client(Credentials(access, age=0.0), Bounds()) as client:
            for name in ("client", "client", "other"):
                file.write_bytes(signed.certificate(name) + signed.key(name))
                await client.get(PODS, "a", "b")

    assert serve(signed, work, *[respond(200, {})] * 3).connections == 2


def test_a_file_that_cannot_be_read_may_be_there_later(tmp_path: Path) -> None:
    async def go() -> str:
        access = Access("https://127.0.0.1:1", token_file=tmp_path / "token", source="f")
        credentials = Credentials(access)
        with pytest.raises(TryAgain, match=r"cannot read the tokenFile .*token: No such file"):
            await credentials.show()
        (tmp_path / "token").write_text("here")
        return (await credentials.show()).token

    assert asyncio.run(go()) == "here"


@pytest.mark.parametrize("token", ["two words", "line\nbreak: x", "gehe\u00efm"])
def test_a_token_is_one_word_and_else_is_not_told(token: str) -> None:
    said = refused(Access("https://127.0.0.1:1", token=token, source="f"))
    assert said == "f: the token has characters that no token has"


# --- programs


def test_a_program_is_asked_once_until_what_it_printed_is_over(tmp_path: Path) -> None:
    async def go() -> list[str]:
        count = f"echo again >>{tmp_path}/count; " + printing(token="soon", expirationTimestamp="2020-01-01T00:00:00Z")
        over = Credentials(Access("https://127.0.0.1:1", exec=program(tmp_path, count), source="f"))
        for _ in range(2):
            assert (await over.show()).token == "soon"
        assert (tmp_path / "count").read_text().split() == ["again", "again"]
        later = f"echo again >>{tmp_path}/count; " + printing(token="late", expirationTimestamp="2999-01-01T00:00:00Z")
        lasting = Credentials(Access("https://127.0.0.1:1", exec=program(tmp_path, later), source="f"), age=0.0)
        return [(await lasting.show()).token for _ in range(2)]

    assert asyncio.run(go()) == ["late", "late"]
    assert len((tmp_path / "count").read_text().split()) == 3


def test_a_program_can_print_a_certificate(signed: Signed, tmp_path: Path) -> None:
    pair = {
        "clientCertificateData": signed.certificate("client").decode(),
        "clientKeyData": signed.key("client").decode(),
    }
    (tmp_path / "printed").write_text(json.dumps({"kind": "ExecCredential", "apiVersion": VERSION, "status": pair}))

    async def work(server: Scripted) -> None:
        access = server.over_tls(signed.certificate("authority"), exec=program(tmp_path, f"cat {tmp_path}/printed"))
        await ask(server.client_of(access))

    assert len(serve(signed, work, respond(200, {})).asked) == 1


def test_a_program_is_told_the_version_and_if_it_asks_the_cluster(tmp_path: Path) -> None:
    plugin = program(tmp_path, f'echo "$KUBERNETES_EXEC_INFO" >{tmp_path}/info; ' + printing(token="x"))
    told = replace(plugin, cluster={"server": "https://127.0.0.1:1"})
    asyncio.run(Credentials(Access("https://127.0.0.1:1", exec=told, source="f")).show())
    info = json.loads((tmp_path / "info").read_text())
    assert (info["apiVersion"], info["spec"]["cluster"]["server"]) == (VERSION, "https://127.0.0.1:1")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo geheim; exit 3", "ended with 3"),
        ("echo geheim", "printed no ExecCredential in JSON"),
        ("echo '[]'", "printed no ExecCredential in JSON"),
        (printing(token="geheim").replace("/v1", "/v9"), "did not print an ExecCredential of client.auth"),
        (printing(token="geheim", expirationTimestamp="soon"), "printed no ExecCredential"),
    ],
)
def test_a_program_that_fails_is_named_and_its_output_is_not(tmp_path: Path, script: str, said: str) -> None:
    found = refused(Access("https://127.0.0.1:1", exec=program(tmp_path, script), source="f"))
    assert said in found
    assert str(tmp_path / "program") in found
    assert "geheim" not in found


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    absent = ExecPlugin((str(tmp_path / "absent"),))
    assert "cannot execute" in refused(Access("https://127.0.0.1:1", exec=absent, source="f"))


def test_what_is_shown_is_in_no_repr() -> None:
    async def go() -> str:
        return repr(await Credentials(Access("https://127.0.0.1:1", token="geheim", source="f")).show())

    assert "geheim" not in asyncio.run(go())


def test_a_name_that_nobody_knows_is_told() -> None:
    async def go() -> None:
        client = Client(Credentials(Access("http://api.invalid:1", source="the file")))
        with pytest.raises(Unreachable, match=r"cannot find the API server api\.invalid: .*the file"):
            await client.get(PODS, "a", "b")

    asyncio.run(go())


def test_authorities_without_the_extensions_that_python_wants_are_believed(signed: Signed) -> None:
    async def go() -> ssl.SSLContext | None:
        access = Access("https://127.0.0.1:1", authority=Material(signed.certificate("authority")), source="f")
        return (await Credentials(access).show()).tls

    tls = asyncio.run(go())
    assert tls is not None
    assert tls.verify_mode is ssl.CERT_REQUIRED
    assert not tls.verify_flags & ssl.VERIFY_X509_STRICT


def test_a_kubeconfig_that_was_renewed_is_used(signed: Signed, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"

    async def work(server: Scripted) -> None:
        address = server.over_tls(b"").server
        file.write_bytes(_kubeconfig(address, signed, "client", "first"))
        async with Client(Credentials(find(file), age=0.0), Bounds()) as client:
            await client.get(PODS, "a", "b")
            file.write_text("half of a kubec")  # which is being written
            await client.get(PODS, "a", "b")
            file.write_bytes(_kubeconfig(address, signed, "other", "second"))
            await client.get(PODS, "a", "b")

    server = serve(signed, work, *[respond(200, {})] * 3)
    assert tokens(server) == ["first", "first", "second"]
    assert server.connections == 2  # which show the two certificates


def test_a_kubeconfig_whose_credentials_the_server_refuses_is_read_again_at_once(
    signed: Signed, tmp_path: Path
) -> None:
    file = tmp_path / "kubeconfig"

    async def work(server: Scripted) -> None:
        address = server.over_tls(b"").server
        file.write_bytes(_kubeconfig(address, signed, "client", "first"))
        async with Client(Credentials(find(file)), Bounds()) as client:
            await client.get(PODS, "a", "b")
            file.write_bytes(_kubeconfig(address, signed, "client", "second"))
            await client.get(PODS, "a", "b")

    server = serve(signed, work, respond(200, {}), refuse(401, "Unauthorized"), respond(200, {}))
    assert tokens(server) == ["first", "first", "second"]


def _kubeconfig(server: str, signed: Signed, certificate: str, token: str) -> bytes:
    def inline(data: bytes) -> str:
        return base64.b64encode(data).decode()

    cluster = {"server": server, "certificate-authority-data": inline(signed.certificate("authority"))}
    mine = {
        "client-certificate-data": inline(signed.certificate(certificate)),
        "client-key-data": inline(signed.key(certificate)),
    }
    named = {
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "c", "user": {**mine, "token": token}}],
    }
    return json.dumps({"current-context": "c", **named}).encode()
