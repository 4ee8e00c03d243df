"""`nodeplug install` and `nodeplug uninstall`."""

import json
import subprocess
from typing import Any

import pytest

pytestmark = pytest.mark.unprivileged

CNI_AND_VOLUME = """
[supervisor]
plugin_user = "root"
native_entrypoints = false
[plugins.both]
uses = "both:Both"
isolation = "thread"
"""


def test_install_creates_a_name_per_claim_and_uninstall_removes_them(node: Any) -> None:
    node.configure(CNI_AND_VOLUME)
    exec_dir = node.root / "usr/libexec/kubernetes/kubelet-plugins/volume/exec"
    created = node.json("install")["created"]
    assert sorted(path for path in created if "/.nodeplug." not in path) == sorted(  # but the compiled program
        [
            str(node.root / "opt/cni/bin/nodeplug-both"),
            str(exec_dir / "nodeplug~both"),
        ]
    )
    assert sorted(node.json("uninstall")["removed"]) == sorted(created)
    assert list((node.root / "opt/cni/bin").iterdir()) == []


@pytest.mark.whole
def test_installed_scripts_answer_without_a_daemon(node: Any) -> None:
    node.configure(CNI_AND_VOLUME)
    node.run("install")
    driver = node.root / "usr/libexec/kubernetes/kubelet-plugins/volume/exec/nodeplug~both/both"
    init = subprocess.run([driver, "init"], capture_output=True, text=True, check=True)
    assert json.loads(init.stdout)["capabilities"]["attach"] is False
    environment = {"CNI_COMMAND": "VERSION"}
    script = node.root / "opt/cni/bin/nodeplug-both"
    version = subprocess.run([script], env=environment, capture_output=True, text=True, check=True, input="{}")
    assert "1.0.0" in json.loads(version.stdout)["supportedVersions"]


def test_second_install_reports_everything_unchanged(node: Any) -> None:
    node.configure(CNI_AND_VOLUME)
    node.run("install")
    report = node.json("install")
    assert (report["created"], report["updated"], report["removed"]) == ([], [], [])
    assert len([path for path in report["unchanged"] if "/.nodeplug." not in path]) == 3  # scripts, not programs


@pytest.mark.whole
def test_install_says_in_words_what_it_did(node: Any) -> None:
    node.configure(CNI_AND_VOLUME)
    assert f"created    {node.root}/opt/cni/bin/nodeplug-both" in node.run("install").stdout
    node.run("uninstall")
    assert node.run("uninstall").stdout == "nothing to do\n"


def test_install_over_a_foreign_file_is_refused_by_name(node: Any) -> None:
    node.configure(CNI_AND_VOLUME)
    foreign = node.root / "opt/cni/bin/nodeplug-both"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("somebody else's")
    done = node.run("install")
    assert done.returncode == 1
    assert str(foreign) in done.stderr
    assert foreign.read_text() == "somebody else's"


def test_install_with_a_plugin_that_cannot_be_loaded_installs_nothing(node: Any) -> None:
    node.configure(f"{CNI_AND_VOLUME}[plugins.nothing]\n")
    done = node.run("install")
    assert done.returncode == 1
    assert "nothing was installed" in done.stderr
    assert not (node.root / "opt").exists()


@pytest.mark.whole
def test_conflist_is_installed_under_its_own_name(node: Any) -> None:
    node.configure(CNI_AND_VOLUME)
    conflist = node.root / "10-pods.conflist"
    conflist.write_text('{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"nodeplug-both"}]}')
    node.run("install", "--conflist", str(conflist))
    assert json.loads((node.root / "etc/cni/net.d/10-pods.conflist").read_text())["name"] == "pods"


def test_conflist_that_does_not_exist_is_one_sentence(node: Any) -> None:
    done = node.run("install", "--conflist", "/nowhere/10-x.conflist")
    assert done.returncode == 1
    assert done.stderr == "error: cannot read /nowhere/10-x.conflist: No such file or directory\n"
