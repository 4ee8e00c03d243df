"""Today's callers, as `make consumers` builds them: each is there and says the version that its module asks for."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

MODULES = Path(__file__).parent / "consumers"
PROGRAMS = {
    "kubelet": ("kubernetes", "k8s.io/kubernetes", ["--version"]),
    "kube-apiserver": ("kubernetes", "k8s.io/kubernetes", ["--version"]),
    "kube-controller-manager": ("kubernetes", "k8s.io/kubernetes", ["--version"]),
    "kube-scheduler": ("kubernetes", "k8s.io/kubernetes", ["--version"]),
    "containerd": ("containerd", "github.com/containerd/containerd/v2", ["--version"]),
    "containerd-shim-runc-v2": ("containerd", "github.com/containerd/containerd/v2", ["-v"]),
    "ctr": ("containerd", "github.com/containerd/containerd/v2", ["--version"]),
    "bridge": ("cni", "github.com/containernetworking/plugins", []),
    "host-local": ("cni", "github.com/containernetworking/plugins", []),
    "csi-provisioner": ("provisioner", "github.com/kubernetes-csi/external-provisioner/v6", ["--version"]),
    "csi-snapshotter": ("snapshotter", "github.com/kubernetes-csi/external-snapshotter/v8", ["--version"]),
    "snapshot-controller": ("snapshotter", "github.com/kubernetes-csi/external-snapshotter/v8", ["--version"]),
    "helm": ("helm", "helm.sh/helm/v4", ["version", "--short"]),
    "csi-sanity": ("tools", "github.com/kubernetes-csi/csi-test/v5", ["--version"]),
}
Consumer = Callable[[str], Path]


def version_of(module: str, path: str) -> str:
    text = (MODULES / module / "go.mod").read_text()
    (version,) = re.findall(rf"^\s*(?:require )?{re.escape(path)} (v\S+)", text, re.MULTILINE)
    return str(version)


def said(program: Path, *arguments: str) -> str:
    done = subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_says_the_version_that_its_module_asks_for(consumer: Consumer, name: str) -> None:
    module, path, arguments = PROGRAMS[name]
    assert version_of(module, path) in said(consumer(module) / name, *arguments)


@pytest.mark.parametrize(("name", "word"), [("cnitool", "CNI_IFNAME"), ("csi-sanity", "-csi.endpoint")])
def test_a_tool_tells_how_to_use_it(consumer: Consumer, name: str, word: str) -> None:
    assert word in said(consumer("tools") / name, "--help")
