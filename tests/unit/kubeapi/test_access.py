"""What a kubeconfig says, and what is refused of it."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeplug import InvalidRequest
from nodeplug.kubeapi.access import Access, in_pod, read_kubeconfig
from nodeplug.kubeapi.credentials import find

HERE = Path("/etc/kubernetes")


def config(cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, context: str = "x") -> bytes:
    document = {
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "storage"}}],
        "current-context": context,
    }
    return yaml.safe_dump(document).encode()


def read(data: bytes) -> Access:
    return read_kubeconfig(data, HERE, "the file")


def test_a_kubeconfig_says_whom_to_ask_and_who_asks() -> None:
    found = read(config({"tls-server-name": "kubernetes"}, {"token": "geheim"}))
    assert (found.host, found.port, found.namespace) == ("api", 6443, "storage")
    assert (found.token, found.server_name, found.insecure) == ("geheim", "kubernetes", False)


def test_files_are_looked_for_beside_the_kubeconfig() -> None:
    user = {"tokenFile": "token", "client-certificate": "/other/crt", "client-key": "key"}
    found = read(config({"certificate-authority": "ca.crt"}, user))
    assert [found.authority.file, found.token_file] == [HERE / "ca.crt", HERE / "token"]
    assert [found.certificate.file, found.key.file] == [Path("/other/crt"), HERE / "key"]


def test_certificates_may_stand_in_the_file_itself() -> None:
    inline = base64.b64encode(b"PEM").decode()
    found = read(config({"certificate-authority-data": inline}, {"client-key-data": inline}))
    assert (found.authority.data, found.key.data) == (b"PEM", b"PEM")


def test_nothing_is_insecure_unless_the_file_says_so() -> None:
    assert read(config({"insecure-skip-tls-verify": True})).insecure
    with pytest.raises(InvalidRequest, match="says not to check it"):
        read(config({"insecure-skip-tls-verify": True, "certificate-authority": "ca.crt"}))


def test_no_repr_shows_a_secret() -> None:
    inline = base64.b64encode(b"geheim").decode()
    user = {
        "token": "geheim",
        "client-key-data": inline,
        "exec": {"command": "x", "env": [{"name": "A", "value": "geheim"}]},
    }
    assert "geheim" not in repr(read(config(user=user)))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\xff", "not YAML"),
        (b"a: [", "not YAML"),
        (b"- 1", "must be a mapping"),
        (b"{}", "no current-context"),
        (config(context="y"), "no context 'y'"),
        (config({"server": "api:6443"}), "must be https://HOST:PORT"),
        (config({"server": "https://[1.2.3.4"}), "its server is no URL; it must be https://HOST:PORT"),
        (config({"server": "https://api:no-port"}), "is no URL"),
        (config({"server": "https://me:geheim@api:99999999"}), "is no URL"),
        (config({"server": "https://me:geheim@api:6443"}), "must be https://HOST:PORT"),
        (config({"server": "http://api"}, {"token": "geheim"}), "not sent to http://api"),
        (config({"proxy-url": "http://p"}), "proxy-url"),
        (config(user={"username": "admin", "password": "geheim"}), "basic authentication"),
        (config(user={"auth-provider": {"name": "gcp"}}), "auth-provider"),
        (config(user={"as": "root"}), "impersonation"),
        (config(user={"client-key-data": "geheim!"}), "client-key-data is not base64"),
        (config(user={"exec": {}, "token": "geheim"}).replace(b"exec: {}", b"exec: 5"), "exec has no command"),
    ],
)
def test_what_cannot_be_used_is_refused_without_its_secrets(data: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match="the file") as caught:
        read(data)
    assert said in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_a_pod_has_its_service_account() -> None:
    found = in_pod({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}, HERE)
    assert found is not None
    assert (found.host, found.port, found.token_file) == ("fd00::1", 443, HERE / "token")
    assert in_pod({}) is None


def test_the_kubeconfig_that_is_named_wins_over_all_others(tmp_path: Path) -> None:
    (tmp_path / "named").write_bytes(config({"server": "https://named"}))
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_bytes(config({"server": "https://home"}))
    pod = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    home = {"HOME": str(tmp_path)}
    assert find(tmp_path / "named", {**pod, **home}).host == "named"
    assert find(None, {"KUBECONFIG": str(tmp_path / "named"), **pod, **home}).host == "named"
    assert find(None, {**pod, **home}).host == "10.96.0.1"
    assert find(None, home).host == "home"


def test_without_any_kubeconfig_one_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="name one with --kubeconfig"):
        find(None, {"HOME": str(tmp_path)})
    with pytest.raises(InvalidRequest, match="not merged"):
        find(None, {"KUBECONFIG": "/a:/b"})
