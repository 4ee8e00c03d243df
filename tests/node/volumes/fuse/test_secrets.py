"""A secret reaches its program, and nobody else."""

import json
import os
import re
import signal
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from tests.node.volumes.fuse.lab import DRIVER, PATIENCE, SECRET, condition_of, pid_of

from nodeplug.testing.waiting import until

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_fuse")]


TELLS = 'cat /tmp/secrets/key; echo "$TOKEN"; ls -ln /tmp/secrets/key; exit 1'


def test_a_secret_reaches_the_program_alone(
    make_node: Any, make_plugin: Any, bindfs: dict[str, Any], area: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = {"key": {}, "token": {"environment": "TOKEN"}}
    given = {f"{SECRET}key": b64encode(b"geheim-1").decode(), f"{SECRET}token": b64encode(b"geheim-2").decode()}
    plugin = make_plugin(
        files=bindfs | {"secrets": secrets}, tells={"command": ["sh", "-c", TELLS, "{mountpoint}"], "secrets": secrets}
    )
    node = make_node(fuse=plugin)
    target = node.target("a")
    assert node.mount(DRIVER, target, {"program": "files"} | given) == {"status": "Success"}
    pid = pid_of(plugin)
    assert Path(f"/proc/{pid}/root/tmp/secrets/key").read_bytes() == b"geheim-1"
    assert b"TOKEN=geheim-2" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert Path(f"/proc/{pid}/root/tmp/secrets/key").stat().st_mode & 0o777 == 0o400
    assert b"geheim" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    on_disk = [
        path for path in area.rglob("*") if path.is_file() and "private" not in path.parts and "pods" not in path.parts
    ]
    assert on_disk != []
    assert [path for path in on_disk if b"geheim" in path.read_bytes()] == []
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid_of(plugin) not in {0, pid} and not condition_of(plugin), PATIENCE)
    assert Path(f"/proc/{pid_of(plugin)}/root/tmp/secrets/key").read_bytes() == b"geheim-1"
    node.unmount(DRIVER, target)
    answer = node.mount(DRIVER, target, {"program": "tells"} | given)
    assert "program 'tells' ended with status 1" in answer["message"]
    assert "geheim" not in json.dumps(answer) + caplog.text


def test_a_program_that_puts_a_pipe_in_the_place_of_a_secret_delays_nobody(make_node: Any, make_plugin: Any) -> None:
    script = "cd /tmp/secrets; cat key; rm key; mkfifo key; ln -s /dev/zero other; exit 1"
    plugin = make_plugin(tells={"command": ["sh", "-c", script, "{mountpoint}"], "secrets": {"key": {}}})
    node = make_node(fuse=plugin)
    message = node.mount(DRIVER, node.target("a"), {f"{SECRET}key": b64encode(b"geheim-1").decode()})["message"]
    assert "program 'tells' ended with status 1: ***" in message


@pytest.mark.parametrize("name", ["other", "key"])
def test_a_secret_that_no_program_takes_and_a_missing_one_are_refused(
    make_node: Any, make_plugin: Any, bindfs: dict[str, Any], name: str
) -> None:
    plugin = make_plugin(files=bindfs | {"secrets": {"key": {}, "more": {}} if name == "key" else {}})
    node = make_node(fuse=plugin)
    answer = node.mount(DRIVER, node.target("a"), {f"{SECRET}{name}": b64encode(b"geheim").decode()})
    assert ("lacks more" if name == "key" else "has other, which the program does not take") in answer["message"]


@pytest.mark.parametrize("before", [0, 200, 370, 385, 390, 395])
def test_a_secret_is_masked_in_any_form_and_also_where_the_output_is_cut(
    make_node: Any, make_plugin: Any, before: int
) -> None:
    script = f"""
        printf "%s %s %s %s" "$TOKEN" geheim%2F4711%2Bx%3D geheim%2f4711%2bx%3d Z2VoZWltLzQ3MTEreD0=
        head -c {before} /dev/zero | tr "\\0" .; exit 1"""
    plugin = make_plugin(
        tells={"command": ["sh", "-c", script, "{mountpoint}"], "secrets": {"token": {"environment": "TOKEN"}}}
    )
    node = make_node(fuse=plugin)
    given = {f"{SECRET}token": b64encode(b"geheim/4711+x=").decode()}
    message = node.mount(DRIVER, node.target("a"), given)["message"]
    assert "program 'tells' ended with status 1" in message
    assert not re.search("heim|4711|ehei|Z2Vo|MTEre|ZWlt", message), message
