"""What docs/csi.md says of drivers and pods, with its own configuration, objects and volumes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeplug import Pod, mounted_at
from nodeplug.testing import CsiCaller, CsiFailure, CsiVolume
from nodeplug.testing.csi_caller.controller import created

pytestmark = pytest.mark.node
PAGE = (Path(__file__).parents[3] / "docs" / "csi.md").read_text(encoding="utf-8")
POD = Pod(name="pod", namespace="default", uid="uid-1")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def written(kind: str) -> dict[str, Any]:
    """Return the object of a kind that the page shows."""
    (found,) = [one for text in blocks("yaml") if (one := yaml.safe_load(text)).get("kind") == kind]
    return dict(found)


@pytest.fixture
def kubelet(start_kubelet: Callable[..., Any]) -> Any:
    """A daemon with the first configuration of the page."""
    supervisor, plugins = blocks("toml")[0].split("\n\n")
    return start_kubelet(plugins, supervisor=supervisor.removeprefix("[supervisor]\n") + '\nlisten = ""')


def test_the_object_of_the_page_is_the_one_that_is_printed(kubelet: Any) -> None:
    shown = written("CSIDriver")
    done = kubelet.node.run("csi manifests", "--json", "--driver", shown["metadata"]["name"])
    assert shown in json.loads(done.stdout)["items"], done.stderr


def test_the_inline_volume_of_the_page_is_one_of_its_size(kubelet: Any) -> None:
    (volume,) = next(found["volumes"] for text in blocks("yaml") if "volumes" in (found := yaml.safe_load(text)))
    caller = CsiCaller(kubelet.root, volume["csi"]["driver"])
    target = caller.mount(POD, CsiVolume(volume["name"], volume["csi"]["volumeAttributes"]))
    found = mounted_at(str(target))
    assert found is not None
    assert (found.fs_type, "size=65536k" in found.options) == ("tmpfs", True)
    caller.unmount(POD, volume["name"])
    assert not target.exists()


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@pytest.mark.usefixtures("has_loop_devices")
def test_the_volume_that_is_written_by_hand_is_found_or_not_there_and_never_made(kubelet: Any) -> None:
    source = written("PersistentVolume")["spec"]["csi"]
    caller = CsiCaller(kubelet.root, source["driver"])
    volume = CsiVolume("data", source["volumeAttributes"], source["volumeHandle"])
    with pytest.raises(CsiFailure, match="NOT_FOUND"):
        caller.mount(POD, volume)
    with created(caller, source["volumeAttributes"]["name"]):
        assert mounted_at(str(caller.mount(POD, volume))) is not None
        caller.unmount(POD, "data")
    with pytest.raises(CsiFailure, match=f"INVALID_ARGUMENT: .*{source['volumeHandle']!r}"):
        caller.mount(POD, CsiVolume("data", source["volumeAttributes"], "another"))
