"""The commands as a person runs them: a process, a folder for a root, exit status and both streams."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from nodeplug.frame import HEADER, Frame, Reply, body_size

pytestmark = pytest.mark.unprivileged

HOSTDEV = """
[plugins.hostdev.config]
resources = [{ resource = "example.com/null", groups = [{ nodes = [{ path = "/dev/null" }] }] }]
"""
CNI_AND_VOLUME = """
[plugins.both]
uses = "both:Both"
"""
BOTH = """
from nodeplug import Claim, hookimpl

class Both:
    def __init__(self, config, host):
        pass

    @hookimpl
    def claims(self):
        return [Claim("cni", "nodeplug-both"), Claim("volume", "nodeplug/both")]

    @hookimpl
    def cni_add(self, request):
        raise NotImplementedError

    @hookimpl
    def cni_del(self, request):
        raise NotImplementedError

    @hookimpl
    def volume_publish(self, request):
        raise NotImplementedError
"""


class Node:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "etc/nodeplug.toml"
        self.config.parent.mkdir()
        (root / "python").mkdir()
        (root / "python/both.py").write_text(BOTH)
        self.configure(HOSTDEV)

    def configure(self, text: str) -> None:
        self.config.write_text(f"version = 1\n{text}")

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        place = ["--config", str(self.config), "--root", str(self.root)]
        environment = {**os.environ, "PYTHONPATH": str(self.root / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
        argv = [sys.executable, "-m", "nodeplug", command, *place, *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, cwd="/")

    def json(self, command: str, *arguments: str) -> Any:
        done = self.run(command, "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "nodeplug", *arguments], capture_output=True, text=True, check=False)


# --- help --------------------------------------------------------------------------------------------------------

COMMANDS = ("serve", "check-config", "plugins", "status", "install", "uninstall", "demo", "version")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_teaches_by_an_example(command: str) -> None:
    done = run(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Example: nodeplug {command}" in done.stdout


def test_help_names_every_command() -> None:
    shown = run("--help").stdout
    assert [command for command in COMMANDS if command not in shown] == []


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom nodeplug.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "print({'grpc', 'pyroute2', 'pydantic', 'prometheus_client'} & sys.modules.keys(), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "set()\n"


@pytest.mark.parametrize("form", ["version", "--version"])
def test_version_is_printed(form: str) -> None:
    done = run(form)
    assert (done.returncode, done.stdout, done.stderr) == (0, "nodeplug 0.1.0\n", "")


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("nodeplug st", ["status"]), ("nodeplug status --wa", ["--watch"]), ("nodeplug gp", ["gpu"])],
)
def test_a_shell_completes_commands_and_options(typed: str, completed: list[str]) -> None:
    asked = {"_NODEPLUG_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    command = [sys.executable, "-m", "nodeplug"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **asked})
    assert (done.stdout.split(), done.stderr) == (completed, "")


def test_the_completion_of_a_shell_can_be_shown() -> None:
    shown = subprocess.run(
        ["/bin/bash", "-c", f"{sys.executable} -m nodeplug --show-completion; :"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "complete -o default -F _nodeplug_completion nodeplug" in shown.stdout, shown.stderr


def test_wrong_usage_is_status_2() -> None:
    assert run("status", "--nonsense").returncode == 2


# --- check-config ------------------------------------------------------------------------------------------------


def test_effective_configuration_shows_defaults_of_daemon_and_plugin(node: Node) -> None:
    done = node.run("check-config")
    assert (done.returncode, done.stderr) == (0, "")
    assert 'exec_socket = "/run/nodeplug/exec.sock"' in done.stdout
    assert 'permissions = "rw"' in done.stdout


def test_effective_configuration_is_a_configuration_itself(node: Node) -> None:
    first = node.run("check-config").stdout
    node.config.write_text(first)
    assert node.run("check-config").stdout == first


def test_effective_configuration_as_json(node: Node) -> None:
    answer = node.json("check-config")
    assert answer["problems"] == []
    assert answer["configuration"]["plugins"]["hostdev"]["config"]["watch"] is True


def test_every_mistake_is_told_with_file_and_key(node: Node) -> None:
    (node.config.parent / "plugins.d").mkdir()
    drop_in = node.config.parent / "plugins.d/x.toml"
    drop_in.write_text('[plugins.other]\nuses = "hostdev"\n[plugins.other.config]\nrezources = 1\n')
    done = node.run("check-config")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"error: {drop_in}:3: plugins.other.config.resources: is missing, and has no default",
        (
            f'error: {drop_in}:4: plugins.other.config.rezources: unknown key; did you mean "resources"? '
            "allowed: resources, watch"
        ),
    ]


def test_mistakes_of_the_main_tables_are_all_told(node: Node) -> None:
    node.configure('[supervisor]\nlog_level = "loud"\nsocket = 1\n')
    done = node.run("check-config")
    assert done.returncode == 1
    lines = {line.partition(": supervisor.")[2] for line in done.stderr.splitlines()}
    assert 'log_level: must be "debug", "info", "warning" or "error", not "loud"' in lines
    assert any(line.startswith("socket: unknown key") for line in lines)


def test_missing_file_is_one_sentence(node: Node) -> None:
    node.config.unlink()
    done = node.run("check-config")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {node.config}: the file does not exist; `--config FILE` names another\n")
    assert "Traceback" not in done.stderr


def test_plugin_that_is_not_installed_is_told(node: Node) -> None:
    node.configure("[plugins.nothing]\n")
    assert "no plugin 'nothing' is installed" in node.run("check-config").stderr


def test_checking_writes_nothing(node: Node) -> None:
    before = sorted(node.root.rglob("*"))
    node.run("check-config")
    assert sorted(node.root.rglob("*")) == before


# --- plugins and status ------------------------------------------------------------------------------------------


def test_status_without_a_daemon_is_a_clear_error(node: Node) -> None:
    done = node.run("status")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: the daemon does not listen at")
    assert "nodeplug serve" in done.stderr


def test_plugins_without_a_daemon_come_from_the_configuration(node: Node) -> None:
    done = node.run("plugins")
    assert done.returncode == 0
    assert "This is what the configuration would load" in done.stderr
    assert "device:example.com/null" in done.stdout


def test_plugins_as_json_tell_their_source(node: Node) -> None:
    answer = node.json("plugins")
    assert answer["source"] == "configuration"
    assert answer["plugins"][0]["claims"] == ["device:example.com/null"]
    assert "hostdev" not in answer["available"]


def test_refused_plugin_is_listed_with_its_reason(node: Node) -> None:
    node.configure("[plugins.nothing]\n")
    row = node.json("plugins")["plugins"][0]
    assert row["state"] == "refused"
    assert "no plugin 'nothing' is installed" in row["reason"]


@contextmanager
def answering(path: Path, reply: Reply) -> Iterator[list[Frame]]:
    """Answer one control request as a daemon would."""
    path.parent.mkdir(parents=True)
    frames: list[Frame] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(1)

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                header = peer.recv(HEADER.size, socket.MSG_WAITALL)
                frames.append(Frame.decode(header + peer.recv(body_size(header), socket.MSG_WAITALL)))
                peer.sendall(reply.encode())

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield frames
        finally:
            thread.join()


STATUS = {
    "version": "0.1.0",
    "node": "worker-1",
    "pid": 1,
    "uptime_seconds": 1.0,
    "ready": True,
    "plugins": [
        {
            "name": "x",
            "uses": "x",
            "distribution": "d",
            "state": "running",
            "reason": "",
            "claims": ["cni:from-daemon"],
            "hooks": [],
            "quarantined": False,
        }
    ],
    "resources": [],
    "attachments": [],
    "volumes": [],
    "calls": [],
    "recent": [],
    "spool": 0,
}


def test_status_asks_the_daemon_and_shows_its_answer(node: Node) -> None:
    with answering(node.root / "run/nodeplug/exec.sock", Reply(0, json.dumps(STATUS).encode())) as frames:
        done = node.run("status")
    assert (done.returncode, done.stderr) == (0, "")
    assert frames == [Frame("control", "nodeplug", ("status",))]
    assert "worker-1" in done.stdout
    assert "cni:from-daemon" in done.stdout


def test_status_of_a_node_that_is_ready_ends_with_0(node: Node) -> None:
    with answering(node.root / "run/nodeplug/exec.sock", Reply(0, json.dumps(STATUS).encode())):
        assert node.run("status").returncode == 0


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_status_of_a_node_that_is_not_ready_ends_with_3_and_says_why(node: Node, form: tuple[str, ...]) -> None:
    unready = {**STATUS, "ready": False, "reasons": {"x": "it has no driver"}}
    with answering(node.root / "run/nodeplug/exec.sock", Reply(0, json.dumps(unready).encode())):
        done = node.run("status", *form)
    assert (done.returncode, done.stderr) == (3, "")
    assert "it has no driver" in done.stdout


def watching(node: Node, *form: str) -> subprocess.Popen[str]:
    place = ["--config", str(node.config), "--root", str(node.root)]
    argv = [sys.executable, "-m", "nodeplug", "status", "--watch", "--interval", "0.1", *place, *form]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")


def test_watch_asks_again_until_it_is_interrupted_and_ends_as_the_last_answer(node: Node) -> None:
    socket_path = node.root / "run/nodeplug/exec.sock"
    unready = {**STATUS, "ready": False, "reasons": {}}
    with watching(node, "--json") as process:
        assert process.stdout is not None
        assert "does not listen" in json.loads(process.stdout.readline())["error"]
        for answer in (STATUS, unready):
            with answering(socket_path, Reply(0, json.dumps(answer).encode())):
                while "error" in (told := json.loads(process.stdout.readline())):
                    pass
            assert told == answer
            socket_path.unlink()
            socket_path.parent.rmdir()
        with answering(socket_path, Reply(0, json.dumps(unready).encode())):
            while "error" in json.loads(process.stdout.readline()):
                pass
            process.send_signal(signal.SIGINT)
            assert (process.wait(30), process.stderr.read() if process.stderr else "") == (3, "")


def test_watch_draws_a_terminal_anew(node: Node) -> None:
    with answering(node.root / "run/nodeplug/exec.sock", Reply(0, json.dumps(STATUS).encode())):
        ours, theirs = os.openpty()
        place = ["--config", str(node.config), "--root", str(node.root)]
        argv = [sys.executable, "-m", "nodeplug", "status", "--watch", *place]
        environment = {**os.environ, "TERM": "xterm"}
        with subprocess.Popen(argv, stdout=theirs, stdin=theirs, stderr=theirs, env=environment) as process:
            os.close(theirs)
            shown = b""
            while b"cni:from-daemon" not in shown:
                shown += os.read(ours, 1 << 16)
            process.send_signal(signal.SIGINT)
            with suppress(OSError):  # the other end is closed
                while chunk := os.read(ours, 1 << 16):
                    shown += chunk
            assert process.wait(30) == 0
        os.close(ours)
    assert shown.startswith(b"\x1b[?1049h")  # a screen of its own, given back at the end
    assert b"\x1b[?1049l" in shown


def test_status_as_json_is_the_daemons_answer(node: Node) -> None:
    with answering(node.root / "run/nodeplug/exec.sock", Reply(0, json.dumps(STATUS).encode())):
        assert node.json("status") == STATUS


def test_plugins_of_a_running_daemon_come_from_it(node: Node) -> None:
    with answering(node.root / "run/nodeplug/exec.sock", Reply(0, json.dumps(STATUS).encode())):
        answer = node.json("plugins")
    assert (answer["source"], answer["plugins"]) == ("daemon", STATUS["plugins"])


def test_refusal_of_the_daemon_is_an_error(node: Node) -> None:
    with answering(node.root / "run/nodeplug/exec.sock", Reply(1, b'{"error":"no"}')):
        done = node.run("status")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: no\n"


# --- install and uninstall ---------------------------------------------------------------------------------------


def test_install_creates_a_name_per_claim_and_uninstall_removes_them(node: Node) -> None:
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


def test_installed_scripts_answer_without_a_daemon(node: Node) -> None:
    node.configure(CNI_AND_VOLUME)
    node.run("install")
    driver = node.root / "usr/libexec/kubernetes/kubelet-plugins/volume/exec/nodeplug~both/both"
    init = subprocess.run([driver, "init"], capture_output=True, text=True, check=True)
    assert json.loads(init.stdout)["capabilities"]["attach"] is False
    environment = {"CNI_COMMAND": "VERSION"}
    script = node.root / "opt/cni/bin/nodeplug-both"
    version = subprocess.run([script], env=environment, capture_output=True, text=True, check=True, input="{}")
    assert "1.0.0" in json.loads(version.stdout)["supportedVersions"]


def test_second_install_reports_everything_unchanged(node: Node) -> None:
    node.configure(CNI_AND_VOLUME)
    node.run("install")
    report = node.json("install")
    assert (report["created"], report["updated"], report["removed"]) == ([], [], [])
    assert len([path for path in report["unchanged"] if "/.nodeplug." not in path]) == 3  # scripts, not programs


def test_install_says_in_words_what_it_did(node: Node) -> None:
    node.configure(CNI_AND_VOLUME)
    assert f"created    {node.root}/opt/cni/bin/nodeplug-both" in node.run("install").stdout
    node.run("uninstall")
    assert node.run("uninstall").stdout == "nothing to do\n"


def test_install_over_a_foreign_file_is_refused_by_name(node: Node) -> None:
    node.configure(CNI_AND_VOLUME)
    foreign = node.root / "opt/cni/bin/nodeplug-both"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("somebody else's")
    done = node.run("install")
    assert done.returncode == 1
    assert str(foreign) in done.stderr
    assert foreign.read_text() == "somebody else's"


def test_install_with_a_plugin_that_cannot_be_loaded_installs_nothing(node: Node) -> None:
    node.configure(f"{CNI_AND_VOLUME}[plugins.nothing]\n")
    done = node.run("install")
    assert done.returncode == 1
    assert "nothing was installed" in done.stderr
    assert not (node.root / "opt").exists()


def test_conflist_is_installed_under_its_own_name(node: Node) -> None:
    node.configure(CNI_AND_VOLUME)
    conflist = node.root / "10-pods.conflist"
    conflist.write_text('{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"nodeplug-both"}]}')
    node.run("install", "--conflist", str(conflist))
    assert json.loads((node.root / "etc/cni/net.d/10-pods.conflist").read_text())["name"] == "pods"


def test_conflist_that_does_not_exist_is_one_sentence(node: Node) -> None:
    done = node.run("install", "--conflist", "/nowhere/10-x.conflist")
    assert done.returncode == 1
    assert done.stderr == "error: cannot read /nowhere/10-x.conflist: No such file or directory\n"


def test_effective_configuration_ends_with_what_it_enables(node: Node) -> None:
    done = node.run("check-config")
    assert done.stdout.splitlines()[-1] == "# ok: 1 plugin, 1 resource"


def test_effective_configuration_has_values_as_people_write_them_and_no_long_line(node: Node) -> None:
    cards = "\n".join("[[plugins.gpu.config.simulated]]" for _ in range(40))
    node.configure(
        f"[supervisor]\ndevice_poll = 10\n[plugins.gpu.config]\ndriver = 'simulated'\n{cards}\n"
        '[[plugins.gpu.config.resources]]\nresource = "a.b/c"\nsharing = "memory"\nunit = 1073741824\n'
    )
    done = node.run("check-config")
    assert 'device_poll = "10s"' in done.stdout
    assert 'unit = "1Gi"' in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_mistakes_of_all_files_and_all_plugins_are_told_at_once(node: Node) -> None:
    folder = node.config.parent / "plugins.d"
    folder.mkdir()
    node.configure("[supervisor]\nlisten = 5\n[plugins.tmpfs.config]\nmax_sise = '1Gi'\n")
    (folder / "a.toml").write_text("[plugins.a\n")
    (folder / "b.toml").write_text('[plugins.gpu.config]\nresources = []\n[plugins.bridge]\nuse = "x"\n')
    (folder / "c.toml").write_text("[plugins.nothing]\n")
    done = node.run("check-config")
    places = [line.split(": ")[1:3] for line in done.stderr.splitlines()]
    assert [(place.removeprefix(f"{node.config.parent}/"), key) for place, key in places] == [
        ("nodeplug.toml:3", "supervisor.listen"),
        ("nodeplug.toml:5", "plugins.tmpfs.config.max_sise"),
        ("plugins.d/a.toml:1", "is not TOML"),
        ("plugins.d/b.toml:2", "plugins.gpu.config.resources"),
        ("plugins.d/b.toml:4", "plugins.bridge.use"),
        ("plugins.d/c.toml:1", "plugins.nothing"),
    ]
    assert 'did you mean "max_size"?' in done.stderr
    assert "must have at least 1 entry, not 0" in done.stderr
