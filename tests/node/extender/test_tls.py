"""TLS of the extenders' port: certificates that change, end, or are wrong, and schedulers without one."""

import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.certificates import authority, openssl, sign
from tests.node.extender.conftest import address, asking
from tests.programs import need

from nodeplug.extender.certificates import Certificates, Loaded, Unusable, load
from nodeplug.testing import ExtenderFailure, ScratchNode
from nodeplug.testing.scheduler import pod as v1_pod
from nodeplug.testing.waiting import until

Make = Callable[..., ScratchNode]
pytestmark = pytest.mark.unprivileged


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    need("openssl")
    authority(tmp_path)
    sign(tmp_path, "server")
    sign(tmp_path, "scheduler")
    return tmp_path


def keys(files: Path, *, clients: bool = False) -> str:
    ca = f'client_ca = "{files}/authority.crt"\n' if clients else ""
    return f'tls_cert = "{files}/server.crt"\ntls_key = "{files}/server.key"\n{ca}'


def trusting(files: Path, client: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(files / "authority.crt"))
    if client:
        context.load_cert_chain(files / f"{client}.crt", files / f"{client}.key")
    return context


def serial(node: ScratchNode, files: Path) -> object:
    host, _, port = address(node).rpartition("/")[2].rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        trusting(files).wrap_socket(plain, server_hostname=host) as encrypted,
    ):
        return (encrypted.getpeercert() or {})["serialNumber"]


@pytest.mark.whole
def test_a_certificate_that_is_renewed_serves_new_connections(make_node: Make, files: Path) -> None:
    node = make_node(keys=keys(files))
    assert address(node).startswith("https://")
    before = serial(node, files)
    with asking(node, tls=trusting(files)) as scheduler:
        assert scheduler.filter(v1_pod("web"), ["b"]).nodes == ("b",)
        sign(files, "server")
        until(lambda: serial(node, files) != before)
        assert scheduler.filter(v1_pod("web"), ["b"]).nodes == ("b",)  # on the connection of before
    assert node.status()["ready"]


@pytest.mark.whole
def test_a_certificate_that_cannot_be_used_does_not_take_the_place_of_the_former(make_node: Make, files: Path) -> None:
    node = make_node(keys=keys(files))
    before = serial(node, files)
    (files / "server.key").write_bytes((files / "scheduler.key").read_bytes())
    until(lambda: "cannot be used" in node.status()["reasons"].get("scheduler extenders", ""))
    told = node.status()["reasons"]["scheduler extenders"]
    assert "KEY_VALUES_MISMATCH" in told
    assert told.endswith("the former one stays")
    assert serial(node, files) == before


def test_a_scheduler_without_a_certificate_is_refused_where_one_is_asked_for(make_node: Make, files: Path) -> None:
    node = make_node(keys=keys(files, clients=True))
    with asking(node, tls=trusting(files)) as stranger, pytest.raises(ExtenderFailure):
        stranger.filter(v1_pod("web"), ["b"])
    until(lambda: "PEER_DID_NOT_RETURN_A_CERTIFICATE" in node.log, 20, found=lambda: node.log)
    with asking(node, tls=trusting(files, "scheduler")) as scheduler:
        assert scheduler.filter(v1_pod("web"), ["b"]).nodes == ("b",)


def test_one_who_never_shakes_hands_keeps_nobody_from_it(make_node: Make, files: Path) -> None:
    node = make_node(keys=keys(files))
    host, _, port = address(node).rpartition("/")[2].rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(300)]
    try:
        with asking(node, tls=trusting(files)) as scheduler:
            assert scheduler.filter(v1_pod("web"), ["b"]).nodes == ("b",)
        assert node.status()["extender"]["connections"] <= 256
    finally:
        for one in silent:
            one.close()


def test_a_certificate_that_has_ended_is_told_and_when_it_ends_is_measured(
    make_node: Make, files: Path, port: int
) -> None:
    sign(files, "server", "-days", "0")  # since 3.4, openssl makes none that ended before it began
    node = make_node(keys=keys(files), supervisor=f'listen = "127.0.0.1:{port}"')
    until(lambda: "has expired at" in node.status()["reasons"].get("scheduler extenders", ""))
    ends = load(f"{files}/server.crt", f"{files}/server.key").not_after
    assert node.status()["extender"]["certificate_expires"] == ends
    gauge = "nodeplug_extender_certificate_expiry_timestamp_seconds"
    until(lambda: [float(line.split()[1]) for line in scraped(port) if line.startswith(gauge)] == [ends])


def scraped(port: int) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        return str(page.read().decode()).splitlines()


@pytest.mark.parametrize(
    ("life", "left", "told"),
    [
        (30 * 86400, 4 * 86400, ""),
        (30 * 86400, 2 * 86400, "expires at"),
        (365 * 86400, 8 * 86400, ""),
        (365 * 86400, 6 * 86400, "expires at"),
        (3600, 400, ""),
        (3600, 300, "expires at"),
        (3600, -1, "has expired at"),
    ],
)
def test_a_certificate_is_due_when_a_tenth_of_its_life_or_a_week_is_left(life: int, left: int, told: str) -> None:
    now = time.time()
    loaded = Loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), now + left - life, now + left)
    trouble = Certificates("/tls.crt", "/tls.key", "", loaded).trouble
    assert (told in trouble) if told else trouble == ""


def test_when_a_certificate_ends_is_what_openssl_says(files: Path) -> None:
    shown = subprocess.run(
        ["openssl", "x509", "-in", "server.crt", "-noout", "-enddate"],
        cwd=files,
        capture_output=True,
        text=True,
        check=True,
    )
    ends = ssl.cert_time_to_seconds(shown.stdout.strip().removeprefix("notAfter="))
    assert load(f"{files}/server.crt", f"{files}/server.key").not_after == ends


def test_files_that_nobody_can_be_served_with_are_told_in_a_sentence(files: Path) -> None:
    sign(files, "client", usage="clientAuth")
    openssl(files, "ec", "-aes256", "-passout", "pass:secret", "-in", "server.key", "-out", "locked.key")
    (files / "empty.crt").write_text("")
    for certificate, key, told in (
        ("client.crt", "client.key", "is no certificate of a server: unsuitable certificate purpose"),
        ("server.crt", "locked.key", "its key has a password"),
        ("absent.crt", "server.key", "No such file or directory; give PEM files of one pair"),
        ("empty.crt", "server.key", "cannot be used: "),
    ):
        with pytest.raises(Unusable, match=told):
            load(f"{files}/{certificate}", f"{files}/{key}")
