"""`nodeplug try`: what an author sees, and what becomes of mistakes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.suites import divided
from typer.testing import CliRunner

from nodeplug.cli import app

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
BROKEN = """
from nodeplug import CniClaim, DeviceClaim, VolumeClaim, hookimpl
class Broken:
    def __init__(self, config, host): pass
    @hookimpl
    def claims(self): return [CniClaim("broken")]
    @hookimpl
    def cni_add(self, request): raise RuntimeError("no cable is plugged in")
    @hookimpl
    def cni_del(self, request): pass
"""
DEVICE = """
from nodeplug import CniClaim, Device, DeviceClaim, DeviceId, Grant, VolumeClaim, hookimpl
class Mine:
    def __init__(self, config, host): pass
    @hookimpl
    def claims(self): return [DeviceClaim("example.com/mine")]
    @hookimpl
    def device_list(self): LISTING
"""

VOLUME = """
from nodeplug import CniClaim, DeviceClaim, InvalidRequest, VolumeClaim, hookimpl
class Mine:
    def __init__(self, config, host): self.log = host.log
    @hookimpl
    def claims(self): return [VolumeClaim("example.com/mine")]
    @hookimpl
    def volume_publish(self, request):
        self.log.warning("the password is %s", request.secrets["password"].decode())
        raise InvalidRequest(f"{sorted(request.secrets)} of {len(request.secrets['password'])} bytes do not suffice")
"""

PLACED = """
from pathlib import Path
from pydantic import BaseModel
from nodeplug import CniClaim, DeviceClaim, VolumeClaim, hookimpl, mount
class PlacedConfig(BaseModel):
    folder: Path
class Placed:
    Config = PlacedConfig
    example = {"volume_options": {"place": "{scratch}/data"}}
    def __init__(self, config, host):
        if list(config.folder.iterdir()): raise RuntimeError(f"{config.folder} is not empty")
        self.folder = config.folder
    @hookimpl
    def claims(self): return [VolumeClaim("example.com/placed")]
    @hookimpl
    def volume_stage(self, request):
        if Path(request.options["place"]) != self.folder / "data": raise RuntimeError(request.options["place"])
        mount("tmpfs", request.staging_path, "tmpfs")
"""

Try = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Try]:
    """Run `nodeplug try` on a configuration, in this process: it has imported everything already."""
    monkeypatch.chdir(tmp_path)
    for folder in (EXAMPLES, tmp_path):
        monkeypatch.syspath_prepend(str(folder))

    def run(config: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "mine.toml").write_text(config)
        done = CliRunner().invoke(app, ["try", "mine.toml", *arguments], catch_exceptions=False)
        return subprocess.CompletedProcess(["try", *arguments], done.exit_code, done.stdout, done.stderr)

    before = set(sys.modules)
    yield run
    for name in sys.modules.keys() - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent in {EXAMPLES, tmp_path}:
            del sys.modules[name]  # the next test has others of these names


def test_a_device_plugin_shows_what_a_container_gets(tried: Try) -> None:
    done = tried('[plugins.fuse]\nuses = "fuse:Fuse"\n')
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/dev/fuse as /dev/fuse (rw)" in done.stdout


@pytest.mark.whole
def test_a_command_that_is_executed_shows_it_too(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[plugins.fuse]\nuses = "fuse:Fuse"\n')
    env = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    command = [sys.executable, "-m", "nodeplug", "try", "mine.toml"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/dev/fuse as /dev/fuse (rw)" in done.stdout


def test_a_volume_gets_the_options_of_the_command_line(tried: Try) -> None:
    done = tried('[plugins.scratch]\nuses = "scratch:Scratch"\n', "--option", "name=x")
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'options: {"name": "x"}' in done.stdout


@pytest.mark.whole
def test_a_volume_is_published_over_csi_too(tried: Try) -> None:
    done = tried('[plugins.scratch]\nuses = "scratch:Scratch"\n', "--option", "name=x")
    publishes = "publish kubelet publishes scratch.example for a pod over CSI, a PersistentVolume with the handle x"
    assert publishes in done.stdout, done.stdout + done.stderr


def test_an_inline_volume_is_published_over_csi_as_one(tried: Try) -> None:
    done = tried("[plugins.tmpfs]\n", "--option", "size=8Mi")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "publish kubelet publishes tmpfs.nodeplug for a pod over CSI, an inline volume" in done.stdout


@pytest.mark.programs("mkfs.ext4", "e2fsck")
@pytest.mark.usefixtures("has_loop_devices")
def test_a_block_volume_is_made_and_published_as_a_device(tried: Try) -> None:
    done = tried('[plugins.loopfile.config]\ndefault_size = "16Mi"\n')
    assert done.returncode == 0, done.stdout + done.stderr
    assert "create  a provisioner has loopfile.nodeplug make a block volume, device" in done.stdout
    assert "publish the pod gets a device of 16Mi" in done.stdout
    assert "delete  the block volume is deleted" in done.stdout


def test_scratch_in_the_example_is_the_folder_that_verify_means(tried: Try, tmp_path: Path) -> None:
    (tmp_path / "placed.py").write_text(PLACED)
    done = tried('[plugins.placed]\nuses = "placed:Placed"\nconfig = { folder = "{scratch}" }\n')
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_refused_call_shows_what_the_caller_reads_and_the_log(tried: Try, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    done = tried('[plugins.broken]\nuses = "broken:Broken"\n')
    assert done.returncode == 1
    assert "no cable is plugged in" in done.stdout
    assert "log " in done.stdout


@pytest.mark.parametrize(
    ("config", "arguments", "sentence"),
    [
        ("", [], "has no [plugins.NAME] table"),
        ("[", [], "mine.toml:1: is not TOML"),
        ('[plugins.x]\nuses = "nowhere:X"', [], "No module named 'nowhere'"),
        ('[plugins.fuse]\nuses = "fuse:Fuse"', ["absent.toml"], "absent.toml: the file does not exist"),
        ('[plugins.fuse]\nuses = "fuse:Fuse"', ["--network", "mine.toml"], "mine.toml is not a network list"),
        ('[plugins.fuse]\nuses = "fuse:Fuse"', ["--option", "x"], "use KEY=VALUE"),
        (
            '[plugins.fuse]\nuses = "fuse:Fuse"',
            ["--isolation", "fork"],
            "'fork' is no isolation; take thread, process or",
        ),
        (
            '[plugins.fuse]\nuses = "fuse:Fuse"',
            ["--serve", "flex"],
            "'flex' is no way to serve devices; take device-plugin, dra or both",
        ),
        ('[plugins.fuse]\nuses = "fuse:Fuse"', ["--secrets", "absent"], "cannot read absent"),
        ('[plugins.fuse]\nuses = "fuse:Fuse"\nenabled = false', [], "remove `enabled = false` from mine.toml"),
        (
            '[plugins.fuse]\nused = "fuse:Fuse"',
            [],
            'mine.toml:2: plugins.fuse.used: unknown key; did you mean "uses"? allowed: uses',
        ),
    ],
)
def test_a_mistake_is_a_sentence(config: str, arguments: list[str], sentence: str, tried: Try) -> None:
    done = tried(config, *arguments)
    assert done.returncode == 1
    assert sentence in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("listing", "sentence"),
    [
        ('raise RuntimeError("no camera")', "device_list of plugin 'mine' raised RuntimeError: no camera"),
        pytest.param(
            "return []",
            "kubelet has no device of example.com/mine: device_list answers none",
            marks=pytest.mark.whole,  # that the list stays empty is known after ten seconds
        ),
    ],
)
def test_a_resource_without_devices_is_told_with_its_reason(
    listing: str, sentence: str, tried: Try, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(DEVICE.replace("LISTING", listing))
    done = tried('[plugins.mine]\nuses = "mine:Mine"\n')
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith("✗")
    assert sentence in last


def test_a_traceback_is_shown_whole(tried: Try, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DEVICE.replace("LISTING", 'raise RuntimeError("no camera")'))
    done = tried('[plugins.mine]\nuses = "mine:Mine"\n')
    assert (
        done.stdout.count("Traceback (most recent call last)") == done.stdout.count("\n          RuntimeError: no") > 0
    )


def test_a_method_that_nobody_calls_is_named(tried: Try, tmp_path: Path) -> None:
    unmarked = '    def device_allocate(self, request): return Grant(env={"A": "b"})\n'
    (tmp_path / "mine.py").write_text(DEVICE.replace("LISTING", 'return [Device(DeviceId("one"))]') + unmarked)
    done = tried('[plugins.mine]\nuses = "mine:Mine"\n')
    assert "device_allocate has no @hookimpl" in done.stdout
    assert "a container asks for one example.com/mine and gets nothing" in done.stdout


def test_secrets_reach_the_driver_and_are_never_shown(tried: Try, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(VOLUME)
    (tmp_path / "secret").write_text("password=tell-nobody\n")
    way = ("--isolation", "thread")  # what a process has logged may come later than its answer
    done = tried('[plugins.mine]\nuses = "mine:Mine"\n', "--secrets", "secret", *way)
    assert "['password'] of 11 bytes do not suffice" in done.stdout, done.stdout + done.stderr
    assert "the password is ***" in done.stdout
    assert "tell-nobody" not in done.stdout + done.stderr


CARD = """
from nodeplug import Device, DeviceClaim, DeviceId, Grant, Part, hookimpl
class Card:
    def __init__(self, config, host): pass
    @hookimpl
    def claims(self):
        return [DeviceClaim("example.com/card"), DeviceClaim("example.com/cards", counted=True)]
    @hookimpl
    def device_list(self, request):
        if request.resource == "example.com/cards":
            return [Device(DeviceId("card"))]
        part = Part(DeviceId("card"), {"memory": 1 << 30})
        return [Device(DeviceId(f"card-{n}"), part=part, attributes={"fast": True}) for n in range(5)]
    @hookimpl
    def device_allocate(self, request):
        return Grant(env={"PARTS": str(len(request.ids))}, annotations={"note": "x"})
"""


@pytest.mark.whole
def test_a_plugin_is_served_to_claims_and_to_kubelet_one_after_the_other(tried: Try) -> None:
    done = tried('[plugins.fuse]\nuses = "fuse:Fuse"\n', "--serve", "both")
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout.splitlines()
    assert "pod     a container asks for one example.com/fuse and gets" in told
    assert "claim   a claim for one example.com/fuse gets fuse-0" in told
    assert told.count("node    /dev/fuse as /dev/fuse (rw)") == 2


def test_no_container_asks_for_what_is_only_counted(tried: Try) -> None:
    cards = 'driver = "simulated"\nsimulated = [{ memory = "8GiB", count = 2 }]\n'
    done = tried(f'[plugins.gpu.config]\n{cards}[[plugins.gpu.config.resources]]\nsharing = "memory"\n')
    assert done.returncode == 0, done.stdout + done.stderr
    assert "count   aliyun.com/gpu-count is only counted: no container asks for it" in done.stdout.splitlines()


@pytest.mark.whole
def test_half_of_what_has_parts_is_claimed_and_what_is_lost_is_told(tried: Try, tmp_path: Path) -> None:
    (tmp_path / "card.py").write_text(CARD)
    done = tried('[plugins.card]\nuses = "card:Card"\nserve = "dra"\n')
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[1:-1] == [
        "driver  kubelet has registered card.nodeplug.io, and the scheduler sees its pool node-1/example.com/card",
        "device  card: memory 5Gi in parts of 1Gi; fast=true",
        "claim   a claim for 3Gi of memory of one example.com/card gets 3Gi of memory of card",
        "pod     a container with that claim gets",
        "env     PARTS=3",
        "end     the pod is gone, and nothing is left of its claim: no CDI spec, no record, nothing to tell the plugin",
        "lost    the annotation 'note': Dynamic Resource Allocation has none",
        "count   example.com/cards is only counted: there are no claims of it",
    ]


@pytest.mark.whole
def test_what_devices_take_of_each_other_is_told_and_that_kubelet_cannot_count_it(tried: Try, tmp_path: Path) -> None:
    listing = """
        takes = {"a": 1, "card": 2}
        some = [(one, Counters("card", {"slices": 2}, {"slices": n})) for one, n in takes.items()]
        return [Device(DeviceId(one), counters=counters) for one, counters in some]
"""
    plugin = DEVICE.replace("LISTING", listing).replace("import CniClaim,", "import CniClaim, Counters,")
    (tmp_path / "mine.py").write_text(plugin)
    done = tried('[plugins.mine]\nuses = "mine:Mine"\n', "--serve", "dra")
    assert "device  card: takes slices 2 of card" in done.stdout.splitlines(), done.stdout + done.stderr
    done = tried('[plugins.mine]\nuses = "mine:Mine"\n', "--serve", "device-plugin")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].endswith('serve the section by claims (serve = "dra")'), done.stdout


@pytest.mark.whole
def test_what_cannot_be_served_to_claims_is_told_with_its_reason(tried: Try, tmp_path: Path) -> None:
    prepares = "    @hookimpl\n    def device_prestart(self, request): pass\n"
    (tmp_path / "mine.py").write_text(DEVICE.replace("LISTING", 'return [Device(DeviceId("one"))]') + prepares)
    done = tried('[plugins.mine]\nuses = "mine:Mine"\n', "--serve", "dra")
    assert done.returncode == 1
    assert "plugin 'mine' has device_prestart, which nobody calls for claims" in done.stdout.splitlines()[-1]


WHERE = """
import os, sys
from nodeplug import CniClaim, Device, DeviceClaim, DeviceId, Grant, VolumeClaim, hookimpl
class Mine:
    def __init__(self, config, host): pass
    @hookimpl
    def claims(self): return [DeviceClaim("example.com/mine")]
    @hookimpl
    def device_list(self):
        return [Device(DeviceId("one"), grant=Grant(env={"WHERE": "daemon" if "serve" in sys.argv else "worker"}))]
"""


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        (["--isolation", "thread"], [("plugin mine as a thread claims", "daemon")]),
        (["--isolation", "process"], [("plugin mine in a process claims", "worker")]),
        (
            ["--isolation", "both"],
            [("plugin mine as a thread claims", "daemon"), ("plugin mine in a process claims", "worker")],
        ),
    ],
)
@pytest.mark.parametrize(
    "said", divided(['isolation = "thread"', 'isolation = "process"', ""], {'isolation = "process"'})
)
def test_a_plugin_is_tried_in_the_asked_way_whatever_its_section_says(
    said: str, arguments: list[str], seen: list[tuple[str, str]], tried: Try, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(WHERE)
    done = tried(f'[plugins.mine]\nuses = "mine:Mine"\n{said}\n', *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    told = iter(done.stdout.splitlines())
    for start, where in seen:
        assert any(start in line for line in told), done.stdout
        assert any(f"WHERE={where}" in line for line in told), done.stdout


@pytest.mark.parametrize(("said", "where"), [("thread", "daemon"), ("process", "worker")])
def test_without_a_word_a_plugin_is_tried_as_its_section_says(
    said: str, where: str, tried: Try, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(WHERE)
    done = tried(f'[plugins.mine]\nuses = "mine:Mine"\nisolation = "{said}"\n')
    assert f"WHERE={where}" in done.stdout, done.stdout + done.stderr
