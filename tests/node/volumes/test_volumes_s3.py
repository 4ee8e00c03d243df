"""s3fs as a program of the fuse driver, against a real S3 server: the command line of docs/plugins/fuse.md."""

import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fuse_programs import end_strays
from tests.programs import need

from nodeplug import mounted_at
from nodeplug.testing.waiting import until
from nodeplug_volumes.fuse.config import FuseConfig
from nodeplug_volumes.fuse.plugin import Fuse

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_fuse")]
DRIVER = "nodeplug/fuse"
PAGE = Path(__file__).parents[3] / "docs" / "plugins" / "fuse.md"
PASSWD = {"kubernetes.io/secret/passwd": b64encode(b"ACCESSKEY:geheim-4711").decode()}
OWNER = "AWS4-HMAC-SHA256 Credential=ACCESSKEY/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
"""moto believes who asks, and hides objects from those who do not say."""
PATIENCE = 60
MIB = 1 << 20


@dataclass(frozen=True)
class Store:
    """An S3 server (moto, which answers over HTTP and keeps objects in memory)."""

    url: str

    def ask(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(f"{self.url}/{path}", method=method, headers={"Authorization": OWNER})
        with urllib.request.urlopen(request, timeout=60) as answer:
            content: bytes = answer.read()
            return content


def answers(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    need("s3fs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: answers(port), PATIENCE)
        made = Store(f"http://127.0.0.1:{port}")
        made.ask("PUT", "models")
        yield made
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def plugin(make_host: Any, area: Path, store: Store) -> Iterator[Fuse]:
    (text, *_) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    programs = tomllib.loads(text.replace("https://s3.example.com", store.url))["plugins"]["fuse"]["config"]["programs"]
    config = FuseConfig.model_validate({"programs": {"s3": programs["s3"]}, "check_interval": "100ms"})
    made = Fuse(config, make_host("fuse"))
    made.start()
    yield made
    made.stop()
    end_strays(area / "hosts" / "fuse")


@pytest.fixture
def node(make_node: Any, plugin: Fuse) -> Any:
    return make_node(fuse=plugin)


@pytest.fixture
def mount_bucket(node: Any) -> Callable[[str], Path]:
    def mount(pod: str) -> Path:
        target: Path = node.target(pod)
        assert node.mount(DRIVER, target, PASSWD | {"bucket": "models"}) == {"status": "Success"}
        return target

    return mount


def test_what_a_pod_writes_is_an_object_of_the_bucket(mount_bucket: Callable[[str], Path], store: Store) -> None:
    target = mount_bucket("a")
    (target / "hello").write_text("world")
    assert store.ask("GET", "models/hello") == b"world"
    large = os.urandom(3 * MIB)
    (target / "large").write_bytes(large)
    assert store.ask("GET", "models/large") == large
    (target / "hello").unlink()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        store.ask("GET", "models/hello")


def test_pods_with_one_bucket_and_secret_share_a_program(
    mount_bucket: Callable[[str], Path], plugin: Fuse, node: Any
) -> None:
    one, two = mount_bucket("a"), mount_bucket("b")
    (one / "shared").write_text("yes")
    assert (two / "shared").read_text() == "yes"
    (volume,) = plugin.inspect()["volumes"]
    assert volume["pods"] == 2
    for target in (one, two):
        assert node.unmount(DRIVER, target) == {"status": "Success"}
    assert not Path(f"/proc/{volume['pid']}").exists()
    assert node.mounted == []


def test_a_bucket_is_there_again_after_its_program_was_killed(
    mount_bucket: Callable[[str], Path], plugin: Fuse
) -> None:
    target = mount_bucket("a")
    (target / "kept").write_text("kept")
    former = plugin.inspect()["volumes"][0]["pid"]
    os.kill(former, signal.SIGKILL)
    until(
        lambda: (volume := plugin.inspect()["volumes"][0])["pid"] not in {0, former} and not volume["condition"],
        PATIENCE,
    )
    assert (target / "kept").read_text() == "kept"


def test_a_bucket_that_does_not_exist_is_told_in_the_words_of_the_program(node: Any) -> None:
    target = node.target("a")
    answer = node.mount(DRIVER, target, PASSWD | {"bucket": "no-such-bucket"})
    assert answer["status"] == "Failure"
    assert "bucket" in answer["message"].partition("program 's3' ended")[2].lower()
    assert "geheim" not in answer["message"]
    assert mounted_at(str(target)) is None
