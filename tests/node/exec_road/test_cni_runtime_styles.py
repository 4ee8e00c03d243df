"""The acted CNI runtime as containerd, CRI-O and podman are: what each of them sends that another does not."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nodeplug.testing import CONTAINERD, CRI_O, PODMAN, CniError, CniRuntime, Patience

pytestmark = pytest.mark.unprivileged

PLUGIN = """#!/bin/sh
if [ "$CNI_COMMAND" != VERSION ]; then cat > /dev/null; fi
case $CNI_COMMAND in
ADD) echo '{"cniVersion":"1.0.0"}';;
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}';;
esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for name in ("one", "two"):
        script(tmp_path, PLUGIN, name)
    return tmp_path


def script(folder: Path, text: str, name: str = "two") -> None:
    (folder / "bin" / name).write_text(text)
    (folder / "bin" / name).chmod(0o755)


def runtime(folder: Path, version: str = "1.0.0", **more: Any) -> CniRuntime:
    known = {"portMappings": True, "bandwidth": True, "dns": True, "io.kubernetes.cri.pod-annotations": True}
    plugins = [{"type": "one", "capabilities": known}, {"type": "two"}]
    return CniRuntime({"name": "net", "cniVersion": version, "plugins": plugins}, [folder / "bin"], **more)


def said(net: CniRuntime) -> list[tuple[str, str, str, bool]]:
    """Verb, plugin, CNI_NETNS, and whether a result was given."""
    return [(one.verb, one.plugin, one.env["CNI_NETNS"], "prevResult" in one.config) for one in net.executions]


def test_containerd_sends_a_second_del_without_namespace_and_result(folder: Path) -> None:
    net = runtime(folder, style=CONTAINERD)
    net.attach("c1", "/ns")
    net.detach("c1", "/ns")
    assert said(net)[2:] == [
        ("DEL", "two", "/ns", True),
        ("DEL", "one", "/ns", True),
        ("DEL", "two", "", False),
        ("DEL", "one", "", False),
    ]


@pytest.mark.parametrize("style", [CRI_O, PODMAN])
def test_others_send_one_del(folder: Path, style: Any) -> None:
    net = runtime(folder, style=style)
    net.attach("c1", "/ns")
    net.detach("c1", "/ns")
    assert [one[0] for one in said(net)].count("DEL") == 2


def test_a_failed_add_is_followed_by_a_del_of_the_whole_list_without_result(folder: Path) -> None:
    script(folder, PLUGIN.replace("ADD) ", "ADD) exit 3;; X) "))
    net = runtime(folder)
    with pytest.raises(CniError, match="exit status 3"):
        net.attach("c1", "/ns")
    assert said(net)[2:] == [("DEL", "two", "/ns", False), ("DEL", "one", "/ns", False)]


def test_a_failed_add_is_told_although_the_del_fails_too(folder: Path) -> None:
    script(folder, "#!/bin/sh\nexit 4\n")
    with pytest.raises(CniError) as caught:
        runtime(folder).attach("c1", "/ns")
    assert caught.value.verb == "ADD"


def test_a_del_that_fails_stops_and_keeps_the_result_for_the_next(folder: Path) -> None:
    net = runtime(folder)
    net.attach("c1", "/ns")
    script(folder, "#!/bin/sh\nexit 4\n")
    with pytest.raises(CniError):
        net.detach("c1", "/ns")
    assert [one[1] for one in said(net)][2:] == ["two"]
    script(folder, PLUGIN)
    net.detach("c1", "/ns")
    assert said(net)[3:] == [("DEL", "two", "/ns", True), ("DEL", "one", "/ns", True)]


def test_containerd_spells_capability_arguments_with_capitals(folder: Path) -> None:
    net = runtime(folder, style=CONTAINERD)
    given = {
        "portMappings": [{"hostPort": 80, "containerPort": 8080, "protocol": "tcp", "hostIP": ""}],
        "bandwidth": {"ingressRate": 1000},
        "dns": {"servers": ["10.0.0.10"]},
        "io.kubernetes.cri.pod-annotations": {"color": "red"},
    }
    net.attach("c1", "/ns", capability_args=given)
    assert net.executions[0].config["runtimeConfig"] == {
        "portMappings": [{"HostPort": 80, "ContainerPort": 8080, "Protocol": "tcp", "HostIP": ""}],
        "bandwidth": {"IngressRate": 1000},
        "dns": {"Servers": ["10.0.0.10"]},
        "io.kubernetes.cri.pod-annotations": {"color": "red"},
    }
    assert "runtimeConfig" not in net.executions[1].config


def test_others_spell_them_as_the_conventions_do(folder: Path) -> None:
    net = runtime(folder, style=CRI_O)
    net.attach("c1", "/ns", capability_args={"bandwidth": {"ingressRate": 1000}})
    assert net.executions[0].config["runtimeConfig"] == {"bandwidth": {"ingressRate": 1000}}


def test_containerd_passes_its_own_environment_on(folder: Path) -> None:
    net = runtime(folder, style=CONTAINERD)
    net.attach("c1", "/ns")
    assert "LD_LIBRARY_PATH" in net.executions[0].env


def test_cri_o_checks_right_after_add(folder: Path) -> None:
    net = runtime(folder, style=CRI_O)
    net.attach("c1", "/ns")
    assert [one[:2] for one in said(net)][2:] == [("CHECK", "one"), ("CHECK", "two")]


def test_cri_o_says_null_when_nothing_is_valid(folder: Path) -> None:
    net = runtime(folder, "1.1.0", style=CRI_O)
    net.gc([])
    assert net.executions[-1].config["cni.dev/valid-attachments"] is None


def test_podman_asks_for_the_version_of_each_plugin_first(folder: Path) -> None:
    net = runtime(folder, style=PODMAN)
    net.attach("c1", "/ns")
    assert [one[0] for one in said(net)] == ["VERSION", "VERSION", "ADD", "ADD"]


# --- one execution


def test_a_plugin_past_its_deadline_is_killed(folder: Path) -> None:
    script(folder, "#!/bin/sh\nexec sleep 60\n", "one")
    net = runtime(folder, patience=Patience(deadline=0.1))
    with pytest.raises(CniError, match="no error message: signal: killed"):
        net.add("c1", "/ns")
    assert net.executions[0].status == -9


def test_stderr_of_a_success_is_kept(folder: Path) -> None:
    script(folder, PLUGIN.replace("case", "echo note >&2\ncase"), "one")
    net = runtime(folder)
    net.add("c1", "/ns")
    assert net.executions[0].stderr == b"note\n"


def test_an_error_with_exit_0_is_no_error(folder: Path) -> None:
    script(folder, """#!/bin/sh\necho '{"code": 7, "msg": "no"}'\n""")
    assert "ips" not in runtime(folder).add("c1", "/ns")


def test_null_is_tolerated_as_a_result(folder: Path) -> None:
    script(folder, "#!/bin/sh\necho null\n")
    assert runtime(folder).add("c1", "/ns") == {"cniVersion": "1.0.0"}


def test_a_plugin_that_stays_busy_counts_as_done(folder: Path) -> None:
    net = runtime(folder, patience=Patience(busy_tries=2, busy_wait=0.01))
    (folder / "bin" / "one").unlink()
    binary = folder / "bin" / "one"
    subprocess.run(["/bin/cp", "/bin/true", str(binary)], check=True)
    with binary.open("r+b"):  # "text file busy"
        net.delete("c1", "/ns")
        with pytest.raises(CniError, match="failed to unmarshal raw result"):
            net.add("c1", "/ns")


def test_a_version_without_supported_versions_is_an_error(folder: Path) -> None:
    script(folder, """#!/bin/sh\necho '{"cniVersion": "1.0.0"}'\n""")
    with pytest.raises(CniError, match="decoding version info"):
        runtime(folder).versions()


# --- loading a list


def write(folder: Path, **more: Any) -> Path:
    (folder / "net.d" / "net").mkdir(parents=True)
    (folder / "net.d" / "net" / "20-two.conf").write_text(json.dumps({"type": "two"}))
    path = folder / "net.d" / "10-net.conflist"
    path.write_text(json.dumps({"name": "net", "cniVersion": "1.0.0", "plugins": [{"type": "one"}], **more}))
    return path


def test_plugins_of_the_drop_in_folder_are_appended(folder: Path) -> None:
    net = CniRuntime.load(write(folder), [folder / "bin"])
    net.add("c1", "/ns")
    assert [one.plugin for one in net.executions] == ["one", "two"]


@pytest.mark.parametrize("value", [True, "true", "TRUE"])
def test_a_list_may_refuse_plugins_of_the_drop_in_folder(folder: Path, value: Any) -> None:
    net = CniRuntime.load(write(folder, loadOnlyInlinedPlugins=value), [folder / "bin"])
    assert [one["type"] for one in net.conflist["plugins"]] == ["one"]


def test_a_list_without_plugins_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="no plugins in list"):
        CniRuntime.load(write(folder, plugins=[], loadOnlyInlinedPlugins=True), [folder / "bin"])


def test_a_list_may_live_on_the_drop_in_folder_alone(folder: Path) -> None:
    net = CniRuntime.load(write(folder, plugins=[]), [folder / "bin"])
    assert [one["type"] for one in net.conflist["plugins"]] == ["two"]


@pytest.mark.parametrize("value", ["true", "True"])
def test_booleans_may_be_words(folder: Path, value: str) -> None:
    net = runtime(folder)
    net.add("c1", "/ns")
    net.conflist = {**net.conflist, "disableCheck": value, "disableGC": value}
    net.check("c1")
    net.gc([])
    assert len(net.executions) == 2


def test_another_word_is_no_boolean(folder: Path) -> None:
    net = runtime(folder)
    net.conflist = {**net.conflist, "disableGC": "perhaps"}
    with pytest.raises(ValueError, match="invalid value 'perhaps' for disableGC"):
        net.gc([])
