"""Certificates for tests, made by openssl(1)."""

import subprocess
from pathlib import Path

from tests.programs import need

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def openssl(folder: Path, *arguments: str) -> None:
    need("openssl")
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def authority(folder: Path, name: str = "authority") -> None:
    files = ("-keyout", f"{name}.key", "-out", f"{name}.crt")
    uses = ("-addext", "keyUsage=critical,keyCertSign")  # which Python demands since 3.13
    openssl(folder, "req", "-x509", *_KEY, "-subj", f"/CN={name}", *files, *uses, "-days", "2")


def sign(folder: Path, name: str, *life: str, by: str = "authority", usage: str = "serverAuth,clientAuth") -> None:
    """Make a certificate and its key, each in one step, as a rotation does."""
    openssl(folder, "req", *_KEY, "-subj", f"/CN={name}", "-keyout", "new.key", "-out", "new.csr")
    (folder / "names").write_text(
        f"subjectAltName=IP:127.0.0.1\nextendedKeyUsage={usage}\nauthorityKeyIdentifier=keyid\n"
    )
    signed = ("-CA", f"{by}.crt", "-CAkey", f"{by}.key", "-CAcreateserial", "-extfile", "names")
    openssl(folder, "x509", "-req", "-in", "new.csr", *signed, "-out", "new.crt", *(life or ("-days", "60")))
    (folder / "new.key").rename(folder / f"{name}.key")
    (folder / "new.crt").rename(folder / f"{name}.crt")
