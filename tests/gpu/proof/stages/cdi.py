"""Stage 9: the CDI spec has all that CUDA needs: it is applied by hand, and a client computes in it.

Owns: containers whose image is this node without the driver, one for each root of the driver and each kind of hook.
Refuses: a container runtime: whether one reads the spec as we do is tried elsewhere, without a card.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.gpu.proof.clients import HERE, NODE_PYTHON, Client, Place, Unanswered, failure
from tests.gpu.proof.machine import Machine
from tests.gpu.proof.node import node
from tests.gpu.proof.stage import Disproved, Notes, Skipped

from nodeplug_gpu.driver.folders import FOLDERS

HOOKS: Final = ("auto", "nodeplug", "none")
_FOR_NONE: Final = "/usr/local/nvidia/lib64"
"""Where libraries are without a hook; NVIDIA's images have it in LD_LIBRARY_PATH."""
_LIBRARIES: Final = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")
_DRIVER: Final = ("libcuda*.so*", "libnvidia-*.so*", "libcudadebugger.so*")


@dataclass(frozen=True, slots=True)
class Container:
    """What a spec makes of a container.

    Attributes:
        edits: of the device and of all devices, together: keys as in the spec.
    """

    edits: Mapping[str, Any]

    @property
    def inside(self) -> set[str]:
        """The paths in the container of what is mounted."""
        return {mount["containerPath"] for mount in self.edits["mounts"]}


def run(machine: Machine, notes: Notes) -> None:
    """Try every root of the driver with every hook."""
    machine.need_mounts("a container by hand")
    machine.need_cuda()
    machine.need_whole_card()
    if not (machine.dev_root / "dev/nvidiactl").exists():
        raise Skipped(f"there is no {machine.dev_root / 'dev/nvidiactl'}")
    _need_overlay(machine)
    roots = [root for root in dict.fromkeys([Path("/"), machine.driver_root]) if _has_driver(root)]
    if not roots:
        raise Skipped("libcuda.so.1 is in no folder where the spec looks for it; name the driver's with --driver-root")
    for number, (root, hook) in enumerate((root, hook) for root in roots for hook in HOOKS):
        folder = machine.folder / str(number)
        folder.mkdir()
        _try(replace(machine, driver_root=root, folder=folder), notes, hook)


def _need_overlay(machine: Machine) -> None:
    """Try a container that has nothing."""
    folder = machine.folder / "try"
    folder.mkdir()
    nothing = {"folder": str(folder), "hide": [], "nodes": [], "mounts": [], "hooks": [], "env": {}}
    command = [sys.executable, "-I", str(HERE / "contained.py"), json.dumps(nothing), "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Skipped(f"a root that is copied on write cannot be made here: {done.stderr.strip()[-200:]}")


def _has_driver(root: Path) -> bool:
    return any((root / folder / "libcuda.so.1").exists() for folder in FOLDERS)


def _try(machine: Machine, notes: Notes, hook: str) -> None:
    what = f"root {machine.driver_root}, hook {hook}"
    specs = machine.folder / "cdi"
    access = f'access = {{ cdi = "field", visible_devices = "none", cdi_folder = "{specs}" }}'
    more = f'dev_root = "{machine.dev_root}"\ncdi_hook = "{hook}"'
    with node(machine, access, more) as one:
        names = [device.name for device in one.admit("cdi", 1).cdi_devices]
        container = described(specs, names)
    missing = [mount["hostPath"] for mount in container.edits["mounts"] if not Path(mount["hostPath"]).exists()]
    notes.expect(not missing, f"{what}: the spec mounts what is not there: {' '.join(missing)}")
    notes.figure(f"{what}: mounts", len(container.edits["mounts"]))
    notes.figure(f"{what}: hook", " ".join(one["path"] for one in container.edits["hooks"]) or "none")
    try:
        _use(machine, notes, what, container)
    except Unanswered as error:
        notes.expect(False, f"{what}: {error}")


def described(specs: Path, names: list[str]) -> Container:
    """Return what the specs of a folder say of devices by their full names, as a runtime joins it."""
    found: dict[str, list[Any]] = {"deviceNodes": [], "mounts": [], "hooks": [], "env": []}
    if not names:
        raise Disproved("a container was given no CDI name")
    for name in names:
        kind, _, device = name.partition("=")
        for file in specs.glob("*.json"):
            spec = json.loads(file.read_text())
            if spec["kind"] != kind:
                continue
            all_edits = [one["containerEdits"] for one in spec["devices"] if one["name"] == device]
            if not all_edits:
                raise Disproved(f"{file} has no device {device}")
            for edits in (*all_edits, spec.get("containerEdits", {})):
                for key, values in found.items():
                    values.extend(edits.get(key, ()))
    return Container(found)


def _use(machine: Machine, notes: Notes, what: str, container: Container) -> None:
    edits = container.edits
    # A Python of somebody else's may lie on another file system than the node's root.
    python, own = NODE_PYTHON, []
    if not Path(NODE_PYTHON).exists():
        python, own = os.path.realpath(sys.executable), [(sys.base_prefix, sys.base_prefix)]
    env = dict(word.split("=", 1) for word in edits["env"])
    if not edits["hooks"]:
        env["LD_LIBRARY_PATH"] = _FOR_NONE
    place = {
        "folder": str(machine.folder / "container"),
        "hide": list(_hidden(machine)),
        "nodes": [(one.get("hostPath", one["path"]), one["path"]) for one in edits["deviceNodes"]],
        "mounts": [*own, *((one["hostPath"], one["containerPath"]) for one in edits["mounts"])],
        "hooks": edits["hooks"],
        "env": env,
    }
    Path(place["folder"]).mkdir()
    starter = [sys.executable, "-I", str(HERE / "contained.py"), json.dumps(place)]
    with Client(machine, Place(library="libcuda.so.1", python=python), starter) as client:
        seen = client.ask("start", patience=40)
        if "error" in seen:
            notes.expect(False, f"{what}: {failure(seen)}")
            return
        notes.expect(seen["uuids"] == [machine.card["uuid"]], f"{what}: the client sees {seen['uuids']}")
        notes.expect(client.do("compute")["right"], f"{what}: the client computes wrong numbers")
        for name, why in client.do("load", names=_LIBRARIES).items():
            notes.seen(f"{what}: {name} {why or 'loads'}")
            notes.expect(not why or name != _LIBRARIES[1], f"{what}: {name}: {why}")
        mapped = client.do("mapped")["files"]
        notes.seen(f"{what}: mapped: {' '.join(mapped)}")
        strangers = [path for path in mapped if path not in container.inside]
        notes.expect(not strangers, f"{what}: {' '.join(strangers)} is used, and not from the spec")


def _hidden(machine: Machine) -> Iterator[str]:
    """Yield what an image would not have: the driver, and the linker's knowledge of it."""
    yield "/etc/ld.so.cache"
    if machine.driver_root != Path("/"):
        yield str(machine.driver_root)
    for folder in FOLDERS:
        for pattern in _DRIVER if folder else ():
            yield from map(str, (Path("/") / folder).glob(pattern))
