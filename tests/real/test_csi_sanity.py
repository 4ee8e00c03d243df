"""csi-sanity, the conformance suite of CSI, against drivers that a real daemon serves."""

import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.disks import attached_disk

from nodeplug.contract.mounts import mounts, unmount
from nodeplug.testing import ScratchNode
from nodeplug.testing.folders import remove
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.real
UNKNOWN_TO_NODES = ("attach", "modify", "group")


@dataclass(frozen=True)
class Verdict:
    """What csi-sanity said, by the name of the spec."""

    failed: Mapping[str, str]
    skipped: frozenset[str]
    passed: frozenset[str]


@dataclass(frozen=True)
class Sanity:
    """csi-sanity, and a daemon in a short folder."""

    program: Path
    root: Path

    def run(self, plugins: str, driver: str, **flags: str) -> Verdict:
        node = ScratchNode(self.root / "n", plugins, supervisor='listen = ""\ncsi = true')
        folder = node.paths.plugins_registry
        folder.mkdir(parents=True)
        socket = folder.parent / "plugins" / driver / "csi.sock"
        report = self.root / "report.xml"
        options = {"mountdir": str(self.root / "mnt"), "stagingdir": str(self.root / "staging")} | flags
        with node:
            until(socket.exists, 30)
            done = subprocess.run(
                [
                    *(str(self.program), f"--csi.endpoint=unix:{socket}", f"--ginkgo.junit-report={report}"),
                    *(f"--csi.{name}={value}" for name, value in options.items()),
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            until(lambda: not [one for one in mounts() if Path(one.target).is_relative_to(self.root)], 10)
        assert report.exists(), done.stdout[-4000:] + done.stderr[-4000:]
        return read(report)


def read(report: Path) -> Verdict:
    failed: dict[str, str] = {}
    skipped, passed = set(), set()
    for case in ET.parse(report).iter("testcase"):
        name = case.attrib["name"].removeprefix("[It] ")
        if not name.startswith("["):
            if (failure := case.find("failure")) is not None:
                failed[name] = f"{failure.attrib.get('message', '')} {failure.text or ''}"
            elif case.find("skipped") is not None:
                skipped.add(name)
            else:
                passed.add(name)
    return Verdict(failed, frozenset(skipped), frozenset(passed))


@pytest.fixture
def sanity(consumer: Callable[[str], Path], short_path: Path) -> Iterator[Sanity]:
    (short_path / "n").mkdir()
    yield Sanity(consumer("tools") / "csi-sanity", short_path)
    for left in reversed([one.target for one in mounts() if Path(one.target).is_relative_to(short_path)]):
        unmount(left, lazy=True)
    remove(short_path)


def loopfile(directory: Path, fs_type: str) -> str:
    return f'[plugins.loopfile.config]\ndirectory = "{directory}"\nfs_type = "{fs_type}"\ndefault_size = "320Mi"\n'


@pytest.mark.parametrize("kind", ["mount", "block"])
@pytest.mark.parametrize("fs_type", ["ext4", "xfs"])
def test_loopfile_does_all_that_csi_asks_for(sanity: Sanity, tmp_path: Path, fs_type: str, kind: str) -> None:
    with attached_disk(tmp_path / "disk", "xfs", "4G") as disk:
        verdict = sanity.run(
            loopfile(disk / "images", fs_type),
            "loopfile.nodeplug",
            testvolumesize=str(320 << 20),
            testvolumeexpandsize=str(384 << 20),
            testvolumeaccesstype=kind,
        )
    assert verdict.failed == {}
    assert len(verdict.passed) >= 60
