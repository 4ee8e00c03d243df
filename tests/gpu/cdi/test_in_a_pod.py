"""The plugin in a pod: which programs are the node's, and what the spec calls them, from configuration to file."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.cdi.test_files_and_hooks import install, program

from nodeplug.testing import host
from nodeplug.testing.waiting import until
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.plugin import FAULTS_FILE, Gpu


@pytest.mark.parametrize(
    ("pod", "rooted", "expected"),
    [
        (False, False, "/usr/bin/python3"),
        (True, False, None),
        (True, True, "/usr/bin/nvidia-cdi-hook"),
    ],
)
def test_a_hook_is_a_program_of_the_node_and_none_of_the_pods_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pod: bool, rooted: bool, expected: str | None
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    if pod:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    root, folder = tmp_path / "node", tmp_path / "cdi"
    install(root, "570.1.2")
    if rooted:
        program(root / "usr/bin/nvidia-cdi-hook")
    (root / "dev").mkdir()
    for name in ("nvidiactl", "nvidia0"):
        (root / "dev" / name).touch()
    given = host(tmp_path, plugin="gpu")
    (given.run_dir / FAULTS_FILE).write_text(json.dumps({"driver_version": "570.1.2"}))
    access = {"cdi": "field", "cdi_folder": str(folder)}
    config: dict[str, Any] = {
        "driver": "simulated",
        "simulated": [{"memory": "4Gi"}],
        "poll": "20ms",
        "driver_root": str(root),
        "dev_root": str(root),
        "node_root": str(root) if rooted else None,
        "resources": [{"sharing": "exclusive", "resource": "nvidia.com/gpu", "access": access}],
    }
    plugin = Gpu(GpuConfig.model_validate(config), given)
    plugin.start()
    try:
        until(lambda: any("570.1.2" in path.read_text() for path in folder.glob("*.json")))
        (path,) = folder.glob("*.json")
        edits = json.loads(path.read_text())["containerEdits"]
    finally:
        plugin.stop()
    assert {hook["path"] for hook in edits.get("hooks", ())} == ({expected} if expected is not None else set())
    named = {mount["hostPath"] for mount in edits["mounts"] if mount["hostPath"].endswith("nvidia-smi")}
    assert named == {"/usr/bin/nvidia-smi" if rooted else f"{root}/usr/bin/nvidia-smi"}
