"""`nodeplug verify` as a person runs it: names, options, both streams and exit statuses.

It starts itself once more, in a mount namespace of its own. Most tests call what is started then, in such a namespace
of this process, which has imported everything and has a process that forks daemons.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nodeplug.cli import app
from nodeplug.testing import namespaces

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
ZOO = Path(__file__).parent / "zoo"


def verify(*arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [str(EXAMPLES), str(ZOO), *(path for path in sys.path if path)]
    return subprocess.run(
        [sys.executable, "-m", "nodeplug", "verify", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": ":".join(paths)},
    )


Done = subprocess.CompletedProcess[str]
Judge = Callable[..., Done]


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Call what `nodeplug verify` starts in a mount namespace of its own."""
    for folder in (ZOO, EXAMPLES):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("NODEPLUG_VERIFY_INSIDE", "1")

    def inside(*arguments: str) -> Done:
        namespaces.enter(network=False)
        done = CliRunner().invoke(app, ["verify", *arguments])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

    def judged(*arguments: str) -> Done:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(inside, *arguments).result()

    return judged


def test_a_plugin_that_keeps_the_rules_ends_with_0_and_a_report(judge: Judge) -> None:
    done = judge("fuse:Fuse", "--rule", "ids-are-unique", "--rule", "claims-are-valid")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "contract:",
        "  ok     claims-are-valid: device:example.com/fuse",
        "device:",
        "  ok     ids-are-unique",
        "fuse:Fuse: 2 rules passed, 0 failed, 0 did not apply",
    ]


def test_a_broken_rule_ends_with_1_and_what_to_do(judge: Judge) -> None:
    done = judge("zoo_device:LongIds", "--rule", "ids-are-short")
    assert done.returncode == 1
    for text in ("FAILED ids-are-short", "64 characters", "to do:       Shorten it"):
        assert text in done.stdout


@pytest.mark.parametrize(
    ("arguments", "ways"),
    [
        ((), "thread, process"),
        pytest.param(("--isolation", "both"), "thread, process", marks=pytest.mark.whole),
        (("--isolation", "thread"), "thread"),
        pytest.param(("--isolation", "process"), "process", marks=pytest.mark.whole),
    ],
)
def test_a_rule_is_judged_in_each_way_and_says_in_which(arguments: tuple[str, ...], ways: str, judge: Judge) -> None:
    done = judge("fuse:Fuse", *arguments, "--rule", "daemon-runs-it", "--rule", "claims-are-valid")
    assert done.stdout.splitlines()[1:3] == [
        "  ok     claims-are-valid: device:example.com/fuse",
        f"  ok     daemon-runs-it ({ways})",
    ]


def test_a_plugin_that_wraps_hooks_of_others_is_judged_as_a_thread_alone(judge: Judge) -> None:
    done = judge("audit:Audit", "--rule", "daemon-runs-it")
    assert "  ok     daemon-runs-it (thread)" in done.stdout
    asked = judge("audit:Audit", "--isolation", "process", "--rule", "daemon-runs-it")
    assert "every rule: it wraps hooks of other plugins, so it runs as a thread of the daemon" in asked.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "which plugin?"),
        (("tmpfs", "--isolation", "fork"), "'fork' is no isolation; take thread, process or both"),
        (("no-such-plugin",), "no plugin 'no-such-plugin' is installed"),
        (("tmpfs", "--rule", "no-such-rule"), "no rule no-such-rule"),
        (("tmpfs", "--options", "{"), "--options is not JSON"),
        (("bridge", "--conflist", "/no/such/file"), "/no/such/file"),
        (("tmpfs", "--secrets", "/no/such/file"), "cannot read /no/such/file"),
        (("/no/such/file.toml",), "/no/such/file.toml: the file does not exist"),
    ],
    ids=[
        "no name",
        "unknown isolation",
        "unknown plugin",
        "unknown rule",
        "broken options",
        "missing file",
        "no secrets",
        "no drop-in",
    ],
)
def test_wrong_usage_ends_with_2_and_a_sentence(arguments: tuple[str, ...], told: str, judge: Judge) -> None:
    done = judge(*arguments)
    assert done.returncode == 2
    assert told in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_json_has_every_finding(judge: Judge) -> None:
    done = judge("fuse:Fuse", "--json", "--rule", "ids-are-unique", "--rule", "add-succeeds")
    document = json.loads(done.stdout)
    assert document["passed"] is True
    assert [(one["rule"], one["outcome"]) for one in document["findings"]] == [
        ("ids-are-unique", "passed"),
        ("add-succeeds", "not-applicable"),
    ]


def test_the_list_names_every_rule_with_its_sentence(judge: Judge) -> None:
    done = judge("--list")
    assert done.returncode == 0
    assert "second-del-succeeds                      DEL succeeds when repeated." in done.stdout


def test_a_section_brings_its_configuration(tmp_path: Path, judge: Judge) -> None:
    config = tmp_path / "nodeplug.toml"
    resources = '[{ resource = "example.com/full", groups = [{ nodes = [{ path = "/dev/full" }] }] }]'
    config.write_text(f'version = 1\n[plugins.mine]\nuses = "hostdev"\nconfig = {{ resources = {resources} }}\n')
    done = judge("mine", "--config", str(config), "--rule", "claims-are-valid")
    assert "device:example.com/full" in done.stdout


def test_a_drop_in_brings_the_plugin_and_its_configuration(tmp_path: Path, judge: Judge) -> None:
    drop_in = tmp_path / "mine.toml"
    resources = '[{ resource = "example.com/full", groups = [{ nodes = [{ path = "/dev/full" }] }] }]'
    drop_in.write_text(f'[plugins.mine]\nuses = "hostdev"\nconfig = {{ resources = {resources} }}\n')
    done = judge(str(drop_in), "--rule", "claims-are-valid")
    assert "device:example.com/full" in done.stdout, done.stdout + done.stderr


def test_a_drop_in_with_two_plugins_says_how_to_choose(tmp_path: Path, judge: Judge) -> None:
    drop_in = tmp_path / "two.toml"
    drop_in.write_text("[plugins.tmpfs]\n[plugins.hostdir]\n")
    done = judge(str(drop_in))
    assert done.returncode == 2
    assert "has 2 plugins; verify a file with one, and give others with --beside" in done.stderr


def test_plugins_beside_come_from_a_drop_in(tmp_path: Path, judge: Judge) -> None:
    ipam = {"type": "nodeplug-host-local", "subnet": "10.9.0.0/24", "dataDir": "{scratch}/addresses"}
    conflist = tmp_path / "wire.conflist"
    conflist.write_text(json.dumps({"name": "net", "plugins": [{"type": "example-wire", "ipam": ipam}]}))
    beside = tmp_path / "beside.toml"
    beside.write_text("[plugins.host-local]\n[plugins.tmpfs]\n")
    done = judge("wire:Wire", "--conflist", str(conflist), "--beside", str(beside), "--rule", "add-succeeds")
    assert "ok     add-succeeds" in done.stdout, done.stdout + done.stderr


def test_secrets_of_a_file_are_given_and_never_shown(tmp_path: Path, judge: Judge) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"password": "tell-nobody"}')
    done = judge("zoo_volume:AnswersSecrets", "--secrets", str(secret), "--rule", "mount-succeeds", "--json")
    assert "the password *** is wrong" in json.loads(done.stdout)["findings"][0]["seen"], done.stdout + done.stderr
    assert "tell-nobody" not in done.stdout + done.stderr


def test_a_network_and_a_plugin_beside_come_from_the_command_line(tmp_path: Path, judge: Judge) -> None:
    ipam = {"type": "nodeplug-host-local", "subnet": "10.9.0.0/24", "dataDir": "{scratch}/addresses"}
    conflist = tmp_path / "wire.conflist"
    conflist.write_text(json.dumps({"name": "net", "plugins": [{"type": "example-wire", "ipam": ipam}]}))
    done = judge("wire:Wire", "--conflist", str(conflist), "--beside", "host-local", "--rule", "add-succeeds")
    assert "ok     add-succeeds (thread, process): 10.9.0.3/24" in done.stdout, done.stdout


@pytest.mark.whole
@pytest.mark.programs("unshare")
def test_the_addresses_of_the_machine_are_out_of_reach(tmp_path: Path) -> None:
    machine = Path("/var/lib/cni")
    machine.mkdir(parents=True, exist_ok=True)
    before = sorted(machine.rglob("*"))
    conflist = tmp_path / "pool.conf"
    ipam = {"subnet": "10.9.0.0/24", "dataDir": str(machine / "networks")}
    conflist.write_text(json.dumps({"type": "nodeplug-host-local", "name": "conformance-test", "ipam": ipam}))
    done = verify("host-local", "--conflist", str(conflist), "--rule", "add-succeeds")
    assert "ok     add-succeeds" in done.stdout, done.stdout + done.stderr
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(machine.rglob("*")) == before


@pytest.mark.whole
def test_the_options_of_a_volume_come_from_the_command_line(judge: Judge) -> None:
    done = judge("tmpfs", "--options", '{"size": "1Ki"}', "--rule", "mount-succeeds")
    assert done.returncode == 1
    assert "the smallest tmpfs is" in done.stdout


@pytest.mark.whole
@pytest.mark.programs("setpriv")
def test_without_root_what_could_not_be_judged_ends_with_3(other_user: Any) -> None:
    command = [*other_user.prefix, other_user.python, "-m", "nodeplug", "verify", "tmpfs", "--rule", "mount-succeeds"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=other_user.env, cwd="/")
    assert (done.returncode, "it needs root" in done.stdout) == (3, True), done.stdout + done.stderr


@pytest.mark.whole
@pytest.mark.programs("setpriv")
def test_without_root_the_rules_for_devices_are_judged(other_user: Any) -> None:
    rules = ["--rule", "one-device-is-granted", "--rule", "ids-survive-a-restart"]
    command = [*other_user.prefix, other_user.python, "-m", "nodeplug", "verify", "hostdev", *rules]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=other_user.env, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rules passed" in done.stdout


@pytest.mark.whole
@pytest.mark.programs("unshare")
def test_what_a_job_in_the_background_ignores_is_not_the_plugins_doing() -> None:
    """A shell without job control lets it ignore SIGINT and SIGQUIT (POSIX, asynchronous lists)."""
    verify = [sys.executable, "-m", "nodeplug", "verify", "tmpfs", "--rule", "process-is-left-as-it-was"]
    ignoring = ["sh", "-c", 'trap "" INT QUIT; exec "$@"', "sh", *verify]
    done = subprocess.run(ignoring, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
