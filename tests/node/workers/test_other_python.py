"""A plugin whose process has the Python of another Debian: its own libraries, its own C library, one wire."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests import environments

import nodeplug as n

if TYPE_CHECKING:
    from tests.node.workers.conftest import Guests

Play = Callable[[Any], None]
BUILD = environments.ROOT / ".ci" / "build-python"
HOOKS = (
    *("prepare", "start", "health", "metrics", "cluster_report"),
    *("device_list", "device_prefer", "device_prestart", "device_released"),
    *("cni_add", "cni_del", "cni_check", "cni_gc", "cni_status"),
    *("volume_id", "volume_stage", "volume_publish", "volume_stats"),
    *("volume_create", "volume_list", "volume_snapshot", "volume_snapshot_list"),
)
pytestmark = [pytest.mark.matrix, pytest.mark.programs("chroot", "mount", "unshare")]


@pytest.fixture(scope="module")
def python(acme_wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a program that runs Debian 13's Python in its root, in an environment with the plugin."""
    found = subprocess.run([str(BUILD), "--cached"], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(found.stderr.strip().removeprefix("build-python: "))
    root = tmp_path_factory.mktemp("debian") / "root"
    (root / "wheels").mkdir(parents=True)
    subprocess.run(["tar", "-C", str(root), "-xf", found.stdout.strip()], check=True)
    for name in ("nodeplug-*.whl", "acme*-1.0-*.whl"):
        for wheel in acme_wheels.glob(name):
            (root / "wheels" / wheel.name).write_bytes(wheel.read_bytes())
    pip = ["chroot", str(root), "/opt/acme/bin/pip", "install", "-q", "--no-index", "--no-cache-dir"]
    subprocess.run([*pip, "--find-links", "/wheels", "acme"], check=True, capture_output=True)
    program = root.with_name("python")
    # What is mounted for it lives in a mount namespace of its own and ends with it.
    inside = f'mount -t proc proc {root}/proc && exec chroot {root} /opt/acme/bin/python "$@"'
    program.write_text(f"#!/bin/sh\nexec unshare --mount --propagation private sh -c '{inside}' python \"$@\"\n")
    program.chmod(0o755)
    return str(program)


def test_a_plugin_runs_with_the_python_of_another_debian(python: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section("acme", python=python))
        assert guests.state() == "running", guests.lifecycle.registry.slots["guest"].reason
        found = await guests.call("inspect")
        assert found["version"] == [3, 13]
        assert {"asyncio", "grpc", "google"}.isdisjoint(found["modules"])
        assert (await guests.call("device_allocate")).env == {"LIBRARY": "1.0"}

    play(story)


@pytest.mark.parametrize("hook", HOOKS)
def test_values_of_a_hook_cross_between_two_versions_of_python(hook: str, python: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(
            guest=guests.section("guest", python=python), twin=guests.section(isolation="thread", name="twin")
        )
        assert guests.state() == "running", guests.lifecycle.registry.slots["guest"].reason
        assert await guests.call(hook) == await guests.call(hook, name="twin")

    play(story)


def test_a_grant_crosses_between_two_versions_of_python(python: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section("guest", python=python))
        assert await guests.call("device_allocate") == n.Grant(env={"PID": str(guests.pid())})

    play(story)


def test_a_process_of_another_debian_that_is_killed_is_started_again(python: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section("guest", python=python))
        first = guests.pid()
        os.kill(first, signal.SIGKILL)
        await guests.until(lambda: guests.state() == "running" and guests.pid() != first)
        await guests.call("device_allocate")

    play(story)
