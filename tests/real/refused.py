"""A call that both the reference's plugin and ours refuse, and how the two refusals are compared.

Owns: the programs of both on one host, and what of a sentence differs by chance.
Refuses: the tables of bad input, which are those of the tests.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nodeplug.testing import Sandbox, ScratchNode, folders

INTERNAL = 999


@dataclass(frozen=True)
class Bad:
    """A call that both programs refuse.

    Attributes:
        plugin: the reference's name.
        config: keys of the network, or what is on stdin.
        env: variables that differ from those of a good call; None unsets one.
        code: ours, where the reference has 999.
        says: our sentence, where it is meant to be another.
        why: the reason.
        before: earlier calls that succeed, each the variables that differ.
    """

    plugin: str
    config: Mapping[str, Any] | bytes
    env: Mapping[str, str | None] = field(default_factory=dict)
    code: int = 7
    says: str = ""
    why: str = ""
    before: tuple[Mapping[str, str | None], ...] = ()


@dataclass(frozen=True)
class Programs:
    """Both implementations, on a "host"; each call has a folder for addresses and a namespace of its own."""

    folder: Path
    bins: Mapping[str, Path]
    host: Sandbox

    def refusal(self, bad: Bad, whose: str) -> dict[str, Any]:
        """Call one of the two; what differs by chance is replaced by a word."""
        done = self.call(bad.plugin, whose, bad.env, bad.config, bad.before)
        assert done.returncode == 1, done.stdout
        text = re.sub("veth[0-9a-f]{8}", "VETH", done.stdout.decode())
        return dict(json.loads(text.replace(str(self.bins[whose]), "PATH")))

    def call(
        self,
        plugin: str,
        whose: str,
        env: Mapping[str, str | None],
        config: Mapping[str, Any] | bytes = MappingProxyType({}),
        before: tuple[Mapping[str, str | None], ...] = (),
    ) -> "subprocess.CompletedProcess[bytes]":
        """Call a plugin for a new container, after earlier calls that succeed."""
        folder = Path(tempfile.mkdtemp(prefix=whose, dir=self.folder))
        program = self.bins[whose] / (plugin if whose == "reference" else f"nodeplug-{plugin}")
        stdin = config if isinstance(config, bytes) else stdin_of(config, folder)
        with Sandbox(folder / "pod") as pod:
            good = {
                "CNI_COMMAND": "ADD",
                "CNI_CONTAINERID": "c0",
                "CNI_NETNS": str(pod.path),
                "CNI_IFNAME": "eth0",
                "CNI_PATH": str(self.bins[whose]),
            }
            for changed in before:
                assert self.run(program, {**good, **changed}, stdin).returncode == 0
            done = self.run(program, {**good, **env}, stdin)
        done.stdout = done.stdout.replace(str(folder).encode(), b"FOLDER")
        return done

    def run(self, program: Path, env: Mapping[str, str | None], stdin: bytes) -> "subprocess.CompletedProcess[bytes]":
        given = {key: value for key, value in env.items() if value is not None}
        with self.host.netns.entered():
            # A relative `dataDir` is below the caller's folder.
            return subprocess.run([program], env=given, input=stdin, capture_output=True, check=False, cwd=self.folder)


def stdin_of(keys: Mapping[str, Any], folder: Path) -> bytes:
    """Make a configuration of some keys, with a folder for addresses."""
    config = {"cniVersion": "1.1.0", "name": "net", "type": "any", **keys}
    if isinstance(config.get("ipam"), dict) and "dataDir" not in config["ipam"]:
        config["ipam"] = {**config["ipam"], "dataDir": str(folder / "addresses")}
    return json.dumps(config).encode()


@contextmanager
def programs_with(reference: Path, *plugins: str) -> Iterator[Programs]:
    """Start one daemon with the plugins, on a host with a bridge that has an address of somebody else."""
    root = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    try:
        with ExitStack() as stack:
            (root / "n").mkdir()
            node = stack.enter_context(ScratchNode(root / "n", "".join(f"[plugins.{name}]\n" for name in plugins)))
            assert node.run("install").returncode == 0
            host = stack.enter_context(Sandbox(root / "host"))
            for words in (
                ["link", "add", "foreign0", "type", "bridge"],
                ["link", "set", "foreign0", "up"],
                ["addr", "add", "10.1.1.1/24", "dev", "foreign0"],
            ):
                subprocess.run(["nsenter", f"--net={host.path}", "ip", *words], check=True)
            yield Programs(root, {"reference": reference, "ours": node.paths.cni_bin}, host)
    finally:
        folders.remove(root)


def local(ipam: Any, **keys: Any) -> dict[str, Any]:
    return {"ipam": {"type": "host-local", **ipam} if isinstance(ipam, dict) else ipam, **keys}


def ranges(*sets: Any, **keys: Any) -> dict[str, Any]:
    return local({"ranges": list(sets)}, **keys)


NAMES_GO_TYPES = "the reference shows the words of Go's decoder, with names of Go types"


def unopened(plugin: str, config: Mapping[str, Any], verb: str = "ADD", netns: str = "/no/such/netns") -> Bad:
    """A call for a namespace that is not there, or is none."""
    return Bad(
        plugin,
        config,
        {"CNI_COMMAND": verb, "CNI_NETNS": netns},
        code=8,
        says=f'failed to open netns "{netns}"',
        why="the entrypoint opened it, or did not; the daemon does not know why",
    )


def mistakes(programs: Programs, bad: Bad) -> list[str]:
    """Compare both refusals; name what is not as it should be."""
    theirs, ours = programs.refusal(bad, "reference"), programs.refusal(bad, "ours")
    code = bad.code if theirs["code"] == INTERNAL else theirs["code"]
    found = [
        (ours["code"] == code, f"code {ours['code']}, not {code}"),
        (ours["msg"] == (bad.says or theirs["msg"]), f"{ours['msg']!r}, not {bad.says or theirs['msg']!r}"),
        (bool(bad.says) == bool(bad.why) == (ours["msg"] != theirs["msg"]), f"a difference is told: {theirs['msg']!r}"),
        (theirs.get("details", "") in ours["details"], f"details {ours['details']!r}, not {theirs.get('details')!r}"),
    ]
    return [text for right, text in found if not right]
