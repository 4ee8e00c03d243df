"""Certificates for one test run: an authority, a server and a client that it has signed."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.programs import need


@dataclass
class Signed:
    """What an authority has signed, each as two files of PEM."""

    folder: Path

    def certificate(self, name: str) -> bytes:
        return (self.folder / f"{name}.crt").read_bytes()

    def key(self, name: str) -> bytes:
        return (self.folder / f"{name}.key").read_bytes()

    @property
    def server(self) -> ssl.SSLContext:
        """What a server shows; it wants a client's certificate if there is one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server.crt", self.folder / "server.key")
        context.load_verify_locations(self.folder / "authority.crt")
        context.verify_mode = ssl.CERT_OPTIONAL
        return context


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="session")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    need("openssl")
    folder = tmp_path_factory.mktemp("certificates")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    mine = ("-subj", "/CN=authority", "-keyout", "authority.key", "-out", "authority.crt", "-days", "2")
    openssl(folder, "req", "-x509", *key, *mine)
    for name in ("server", "client", "other"):
        files = ("-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(folder, "req", *key, "-subj", f"/CN={name}", *files)
        (folder / "names").write_text("subjectAltName=DNS:kubernetes,IP:127.0.0.1\n" if name == "server" else "\n")
        by = ("-CA", "authority.crt", "-CAkey", "authority.key", "-CAcreateserial", "-extfile", "names")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", *by, "-out", f"{name}.crt", "-days", "2")
    return Signed(folder)
