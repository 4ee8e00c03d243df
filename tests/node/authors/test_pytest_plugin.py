"""The fixtures in the hands of an author: a folder with a few tests, run by a pytest of its own."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "testing-plugins.md"
HEAD = """
from pathlib import Path
from nodeplug import Pod
from nodeplug.testing import *
"""
CONFIG = """
[plugins.fuse]
uses = "fuse:Fuse"
[plugins.wire]
uses = "wire:Wire"
[plugins.host-local.config]
data_dir = "{scratch}/addresses"
[plugins.scratch]
uses = "scratch:Scratch"
[plugins.hostdev]
serve = "dra"
[[plugins.hostdev.config.resources]]
resource = "example.com/null"
groups = [{ nodes = [{ path = "/dev/null" }] }]
"""
NETWORK = """
{"cniVersion": "1.0.0", "name": "net", "plugins": [
  {"type": "example-wire", "ipam": {"type": "nodeplug-host-local", "subnet": "10.9.0.0/24"}}]}
"""
LEAKY = """
from pathlib import Path
from pyroute2 import IPRoute
from nodeplug import CniAdd, CniClaim, CniDel, CniResult, VolumeStage, hookimpl, mount

class Leaky:
    def __init__(self, config, host): pass
    @hookimpl
    def claims(self): return [CniClaim("leaky")]
    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        with IPRoute() as route:
            route.link("add", ifname="left0", kind="veth", peer="left1")
        return CniResult()
    @hookimpl
    def cni_del(self, request: CniDel) -> None: pass
"""
LEAKY_TEST = """
def test_it(cni_runtime):
    runtime = cni_runtime({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "leaky"}]})
    runtime.add("pod", cni_runtime.sandbox("pod").path)
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the tests of a text in a folder with the documentation's example plugins."""
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.pytest.ini_options]\npythonpath = ["{ROOT}/docs/examples", "."]\nfilterwarnings = ["error"]\n'
        'nodeplug_config = ["node.toml"]\n'
    )
    (tmp_path / "node.toml").write_text(CONFIG)
    (tmp_path / "wire.conflist").write_text(NETWORK)

    def run(text: str, *before: str) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "test_mine.py").write_text(text)
        pytest_of_its_own = [*before, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        return subprocess.run(pytest_of_its_own, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


@pytest.mark.whole
def test_the_tests_of_the_page_pass(run: Run) -> None:
    blocks = re.findall(r"```python\n(def test_.*?)```", PAGE.read_text(), flags=re.DOTALL)
    done = run(HEAD + "\n\n".join(blocks))
    assert f"{len(blocks)} passed" in done.stdout, done.stdout


@pytest.mark.whole
def test_the_cluster_of_a_node_without_claims_says_what_to_write(run: Run, tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text('[plugins.fuse]\nuses = "fuse:Fuse"\n')
    done = run("def test_it(dra_cluster): pass")
    assert 'no section of this node says serve = "dra"' in done.stdout, done.stdout


@pytest.mark.whole
def test_what_a_plugin_leaves_behind_fails_its_test_by_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "leaky.py").write_text(LEAKY)
    (tmp_path / "node.toml").write_text('[plugins.leaky]\nuses = "leaky:Leaky"\n')
    done = run(LEAKY_TEST)
    assert "1 passed, 1 error" in done.stdout, done.stdout
    assert "+ link left0" in done.stdout


@pytest.mark.whole
def test_what_may_stay_is_allowed_by_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "leaky.py").write_text(LEAKY)
    (tmp_path / "node.toml").write_text('[plugins.leaky]\nuses = "leaky:Leaky"\n')
    allow = "import pytest\n@pytest.fixture\ndef nodeplug_may_stay():\n    return ['link left[01]']\n"
    done = run(allow + LEAKY_TEST)
    assert "1 passed" in done.stdout, done.stdout
    assert done.returncode == 0


@pytest.mark.whole
def test_the_machine_does_not_see_the_links_of_a_test(run: Run, tmp_path: Path) -> None:
    (tmp_path / "leaky.py").write_text(LEAKY)
    (tmp_path / "node.toml").write_text('[plugins.leaky]\nuses = "leaky:Leaky"\n')
    run(LEAKY_TEST)
    assert "left0" not in Path("/proc/net/dev").read_text()


@pytest.mark.whole
def test_a_node_that_a_test_killed_still_ends_its_pods(run: Run) -> None:
    done = run(
        HEAD
        + """
def test_it(cni_runtime, scratch_node):
    cni_runtime(Path("wire.conflist")).add("pod", cni_runtime.sandbox("pod").path)
    scratch_node.kill()
"""
    )
    assert "1 passed" in done.stdout, done.stdout
    assert done.returncode == 0


def test_a_project_without_configuration_is_told_what_to_write(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").unlink()
    done = run("def test_it(kubelet): pass")
    assert 'nodeplug_config = ["FILE"]' in done.stdout


@pytest.mark.whole
def test_a_resource_that_never_comes_is_told_with_what_is_there(run: Run) -> None:
    done = run('def test_it(kubelet):\n    kubelet.until_allocatable("example.com/other", 1, seconds=2)')
    assert "1 healthy devices of example.com/other" in done.stdout
    assert "example.com/fuse: 16" in done.stdout


@pytest.mark.whole
def test_a_pytest_that_uses_no_fixture_imports_nothing_of_nodeplug(run: Run) -> None:
    done = run(
        """
import sys
def test_it():
    assert "pytest_nodeplug" in sys.modules
    assert [name for name in sys.modules if name.split(".")[0] in ("nodeplug", "grpc", "pydantic", "pyroute2")] == []
"""
    )
    assert "1 passed" in done.stdout, done.stdout


@pytest.mark.whole
def test_a_condition_that_would_wait_for_itself_is_refused(run: Run) -> None:
    done = run("def test_it(kubelet):\n    kubelet.until(lambda: kubelet.admit('pod', {}))")
    assert "a condition of until() only looks" in done.stdout, done.stdout


WHERE = """
import sys
from nodeplug import Device, DeviceClaim, DeviceId, Grant, hookimpl

class Where:
    def __init__(self, config, host): pass
    @hookimpl
    def claims(self): return [DeviceClaim("example.com/where")]
    @hookimpl
    def device_list(self):
        return [Device(DeviceId("one"), grant=Grant(env={"WHERE": "thread" if "serve" in sys.argv else "process"}))]
"""
WHERE_TEST = """
def where(kubelet):
    kubelet.until_allocatable("example.com/where", 1)
    return kubelet.admit("pod", {"example.com/where": 1})["example.com/where"].envs["WHERE"]
def test_it(kubelet, nodeplug_isolation):
    assert where(kubelet) == nodeplug_isolation
"""


@pytest.fixture
def where(run: Run, tmp_path: Path) -> Run:
    """Run tests of a plugin that tells where it runs."""
    (tmp_path / "where.py").write_text(WHERE)
    (tmp_path / "node.toml").write_text('[plugins.where]\nuses = "where:Where"\n')
    return run


def ini(tmp_path: Path, line: str) -> None:
    with (tmp_path / "pyproject.toml").open("a") as file:
        file.write(line + "\n")


@pytest.mark.whole
@pytest.mark.parametrize(("said", "tests"), [("both", 2), ("process", 1), ("thread", 1)])
def test_tests_with_a_node_run_in_the_ways_of_the_ini_file(said: str, tests: int, where: Run, tmp_path: Path) -> None:
    ini(tmp_path, f'nodeplug_isolation = "{said}"')
    done = where(WHERE_TEST)
    assert f"{tests} passed" in done.stdout, done.stdout


@pytest.mark.whole
def test_the_command_line_wins_over_the_ini_file(where: Run, tmp_path: Path) -> None:
    ini(tmp_path, 'nodeplug_isolation = "both"\naddopts = "--nodeplug-isolation process"')
    done = where(WHERE_TEST + "\ndef test_that(kubelet):\n    assert where(kubelet) == 'process'")
    assert "2 passed" in done.stdout, done.stdout


@pytest.mark.soak
def test_a_module_chooses_one_way_by_a_fixture_of_its_own(where: Run, tmp_path: Path) -> None:
    ini(tmp_path, 'nodeplug_isolation = "both"')
    fixture = "import pytest\n@pytest.fixture\ndef nodeplug_isolation():\n    return 'process'\n"
    done = where(fixture + WHERE_TEST)
    assert "1 passed" in done.stdout, done.stdout


@pytest.mark.soak
def test_a_section_that_says_how_it_runs_is_left_alone(where: Run, tmp_path: Path) -> None:
    ini(tmp_path, 'nodeplug_isolation = "both"')
    (tmp_path / "node.toml").write_text('[plugins.where]\nuses = "where:Where"\nisolation = "process"\n')
    done = where(WHERE_TEST.replace("== nodeplug_isolation", "== 'process'"))
    assert "2 passed" in done.stdout, done.stdout


@pytest.mark.soak
def test_a_node_that_is_configured_anew_keeps_its_way(where: Run, tmp_path: Path) -> None:
    ini(tmp_path, 'nodeplug_isolation = "process"')
    test = """
def test_it(kubelet, scratch_node):
    kubelet.until_allocatable("example.com/where", 1)
    scratch_node.configure('[plugins.other]\\nuses = "where:Where"\\n')
    def others():
        return [(row["name"], row["isolation"]) for row in scratch_node.status()["plugins"]]
    kubelet.until(lambda: others() == [("other", "process")])
"""
    done = where(test)
    assert "1 passed" in done.stdout, done.stdout


@pytest.mark.whole
def test_a_word_that_is_no_way_ends_the_run_with_a_sentence(where: Run, tmp_path: Path) -> None:
    ini(tmp_path, 'nodeplug_isolation = "fork"')
    done = where(WHERE_TEST)
    assert "nodeplug_isolation = 'fork' is no isolation; take thread, process or both" in done.stdout + done.stderr
    assert done.returncode != 0
