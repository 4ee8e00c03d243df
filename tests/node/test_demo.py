"""The demo, as root and as an ordinary user."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need

from nodeplug import NotReady
from nodeplug.cli import demo
from nodeplug.testing import namespaces
from nodeplug.testing.waiting import until


def play(*command: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    need("unshare")
    command = (*(command or (sys.executable,)), "-m", "nodeplug", "demo")
    env = env or {"PATH": os.environ["PATH"], "HOME": "/tmp", "LANG": "C.UTF-8"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env, cwd="/")


@pytest.fixture(scope="module")
def printed() -> str:
    """What it prints, as root and into a pipe."""
    return play().stdout


@pytest.mark.soak
def test_it_ends_well_as_root_and_leaves_nothing() -> None:
    before = set(Path("/tmp").glob("nodeplug-demo-*"))
    done = play()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ nothing is left" in done.stdout
    # Another demo may be playing meanwhile: its folder goes when it ends, and one that this demo left would stay.
    until(lambda: not set(Path("/tmp").glob("nodeplug-demo-*")) - before, 120)


@pytest.mark.whole
def test_it_ends_well_as_an_ordinary_user(other_user: Any) -> None:
    if subprocess.run([*other_user.prefix, "unshare", "-Urnm", "true"], check=False).returncode:
        pytest.skip("needs user namespaces for ordinary users")
    done = play(*other_user.prefix, other_user.python, env=other_user.env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ nothing is left" in done.stdout


@pytest.mark.soak
@pytest.mark.programs("mount")
def test_addresses_of_the_machine_s_own_networks_are_not_its_business(other_user: Any) -> None:
    """The pools of a node are root's, and `--root` does not move them."""
    if subprocess.run([*other_user.prefix, "unshare", "-Urnm", "true"], check=False).returncode:
        pytest.skip("needs user namespaces for ordinary users")
    pools = "mount -t tmpfs none /var/lib && mkdir -p /var/lib/cni/networks/pods && cd /var/lib/cni/networks/pods"
    private = f'{pools} && umask 77 && : >lock && cd / && exec "$@"'
    inside = [*namespaces.command(network=False), "/bin/sh", "-c", private, "sh"]
    done = play(*inside, *other_user.prefix, other_user.python, env=other_user.env)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.programs("unshare")
def test_it_plays_in_a_network_and_with_mounts_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[list[str]] = []

    def execute(command: list[str], **_: object) -> "subprocess.CompletedProcess[str]":
        executed.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", execute)
    assert demo.run() == 0
    probe, command = executed
    assert {"--net", "--mount"} <= set(command) & set(probe)
    assert command[-3:] == ["-m", "nodeplug", "demo"]


@pytest.mark.programs("unshare")
@pytest.mark.parametrize(
    ("user", "said"), [(0, "root cannot make namespaces here: no"), (1000, "run the demo as root")]
)
def test_without_namespaces_it_says_what_to_do(user: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = subprocess.CompletedProcess([], 1, "", "no\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: refused)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(NotReady, match=said):
        demo.run()


@pytest.mark.whole
def test_two_pods_share_a_card_and_a_third_is_refused_with_the_numbers(printed: str) -> None:
    shared = re.findall(r"^ +(\w+) gets (\d) of 8 units of (GPU-\S+)$", printed, re.MULTILINE)
    assert [(pod, units) for pod, units, _ in shared] == [("trainer", "5"), ("server", "2")]
    assert len({card for *_, card in shared}) == 1
    assert re.search(r"it is started again as process \d+; kubelet never saw fewer than 4 devices", printed)
    assert "kubelet refuses it: 5 units of demo.nodeplug.io/gpu-mem wanted on one card" in printed
    assert "1 free on the other card is withheld" in printed
    assert "  [AAAAAAAABBBBBBBBBBBBBBBBBBBB····]  7/8 of demo.nodeplug.io/gpu-mem\n" in printed
    assert "\x1b" not in printed


@pytest.mark.whole
def test_the_readme_shows_what_it_prints(printed: str) -> None:
    shown = (Path(__file__).parents[2] / "README.md").read_text()
    steps = [line.split()[1] for line in printed.splitlines() if line.startswith("✓")]
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("✓")] == steps
