"""What the scripts alone can do: fail for a defect of their own. The rest of them is tested with the compiled twins.

Also how the road installs its entrypoints: when several callers need the same one at once, each finds it whole.
"""

import json
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nodeplug.install.scripts import find_scripts
from nodeplug.testing import ExecRoad

pytestmark = pytest.mark.parametrize("road", ["script"], indirect=True)


@pytest.fixture
def defective(road: ExecRoad, tmp_path: Path) -> ExecRoad:
    road.source = tmp_path / "defective"
    shutil.copytree(find_scripts(), road.source)
    for name in ("nodeplug-cni", "nodeplug-flex"):
        path = road.source / name
        text = path.read_text()
        changed = text.replace("peer.settimeout(", "peer.settimeout(no_such_name or ")
        assert changed != text
        path.write_text(changed)
    return road


def test_a_defect_of_the_script_is_999_without_a_traceback(
    defective: ExecRoad, env: Callable[..., dict[str, str]]
) -> None:
    done = defective.call("test", env("DEL"), b"{}")
    assert (done.status, done.document["code"], done.stderr) == (1, 999, b"")
    assert "the nodeplug entrypoint failed: NameError: name 'no_such_name'" in done.document["msg"]


def test_a_defect_of_the_driver_is_a_failure_without_a_traceback(defective: ExecRoad, tmp_path: Path) -> None:
    done = subprocess.run([defective.flex_script(tmp_path, "driver"), "mount"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout) == {"status": "Failure", "message": "the nodeplug entrypoint failed"}


def test_calls_at_once_find_an_entrypoint_that_is_whole(road: ExecRoad, env: Callable[..., dict[str, str]]) -> None:
    with ThreadPoolExecutor(8) as callers:
        for number in range(4):
            name = f"claim{number}"
            calls = [callers.submit(road.call, name, env("VERSION"), b"{}") for _ in range(8)]
            assert [call.result().status for call in calls] == [0] * 8
