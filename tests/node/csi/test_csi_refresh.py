"""A volume that kubelet publishes again while its pod runs: what expires is renewed, and nothing is undone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeplug import Pod, mounted_at
from nodeplug.testing import CsiCaller, CsiDriverSpec, CsiFailure, CsiVolume

pytestmark = pytest.mark.node
GUESTS = Path(__file__).parent / "guests"
POD = Pod(name="web", namespace="shop", uid="uid-1", service_account="shopper")
VOLUME = CsiVolume("token")
PLUGIN = '[plugins.vault]\nuses = "vault:Vault"\nisolation = "{}"\n'


@pytest.fixture(params=["thread", "process"])
def vault(request: pytest.FixtureRequest, start_kubelet: Callable[..., Any]) -> tuple[CsiCaller, Path]:
    kubelet = start_kubelet(PLUGIN.format(request.param), env={"PYTHONPATH": str(GUESTS)})
    caller = CsiCaller(kubelet.root, "vault.acme", CsiDriverSpec(token_requests=("vault",)))
    return caller, kubelet.node.paths.state / "plugins" / "vault" / "sick"


def test_a_new_token_reaches_the_plugin_while_the_pod_runs(vault: tuple[CsiCaller, Path]) -> None:
    caller, _ = vault
    target = caller.mount(POD, VOLUME)
    assert (target / "token").read_text() == "token-1-of-shopper-for-vault"
    caller.mount(POD, VOLUME)
    assert (target / "token").read_text() == "token-2-of-shopper-for-vault"
    caller.unmount(POD, "token")


@pytest.mark.parametrize("situation", ["not ready", "not found", "already exists", "invalid"])
def test_a_failed_refresh_leaves_the_mount_and_is_asked_again(vault: tuple[CsiCaller, Path], situation: str) -> None:
    """Kubelet takes other codes for final, and some of its versions then unmount a running pod's volume."""
    caller, sick = vault
    target = caller.mount(POD, VOLUME)
    sick.write_text(situation)
    with pytest.raises(CsiFailure) as caught:
        caller.mount(POD, VOLUME)
    assert (caught.value.code, "the server is away" in caught.value.message) == ("UNAVAILABLE", True)
    assert mounted_at(str(target)) is not None
    assert (target / "token").read_text() == "token-1-of-shopper-for-vault"
    sick.unlink()
    caller.mount(POD, VOLUME)
    assert (target / "token").read_text() == "token-3-of-shopper-for-vault"
    caller.unmount(POD, "token")
