"""Write what the chart repeats of nodeplug, and the plain manifests that the chart renders.

python deploy/generate.py              chart/files/*.json, by what nodeplug prints and its pages say; chart/crds
python deploy/generate.py HELM         manifests/nodeplug.yaml, too, by this helm
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import yaml

HERE: Final = Path(__file__).parent
FILES: Final = HERE / "chart" / "files"
CRD: Final = "networks.nodeplug.io.yaml"
NAMESPACE: Final = "namespace-of-release"
"""The chart puts its own in place of it, and its ServiceAccount in place of ACCOUNT."""
ACCOUNT: Final = "account-of-release"
RENDERED: Final = HERE / "manifests" / "nodeplug.yaml"
BUNDLED: Final = """
version = 1
[supervisor]
csi = true
drop_in_dir = ""
plugin_user = "root"
[plugins.loopfile]
[plugins.tmpfs]
[plugins.hostdir.config.roots.main]
path = "/srv"
[plugins.image.config.roots.main]
path = "/srv"
[plugins.fuse.config.programs.files]
command = ["serve", "{mountpoint}"]
[plugins.nfs.config]
servers = ["files.example.com"]
[plugins.smb.config]
servers = ["files.example.com"]
"""
"""Every bundled driver; what a cluster has to know of one does not depend on its configuration."""
CLAIMED: Final = """
version = 1
[supervisor]
drop_in_dir = ""
[plugins.section-of-class]
uses = "hostdev"
serve = "dra"
[[plugins.section-of-class.config.resources]]
resource = "domain-of-class/name-of-class"
groups = [{ nodes = [{ path = "/dev/null" }] }]
"""
"""Names in place of which the chart puts those of its values."""
HEAD: Final = """\
# What `helm template` makes of deploy/chart with deploy/manifests/values.yaml, for those who have no helm. Rendered by
# `python deploy/generate.py HELM`: change the chart or the values, and not this file.
#
#     kubectl apply --server-side -f nodeplug.yaml
---
apiVersion: v1
kind: Namespace
metadata:
  name: nodeplug
  labels:
    pod-security.kubernetes.io/enforce: privileged
"""


def _printed(configuration: str, *words: str) -> list[Any]:
    """Return the objects that a command of nodeplug prints."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "nodeplug.toml"
        config.write_text(configuration, encoding="utf-8")
        command = [sys.executable, "-m", "nodeplug", *words, "--json", "--config", str(config), "--root", folder]
        items: list[Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["items"]
        return items


def csi_objects() -> dict[str, Any]:
    """Return what `nodeplug csi manifests` prints of the bundled drivers, as the chart looks it up."""
    by_kind: dict[str, list[Any]] = {}
    for one in _printed(BUNDLED, "csi", "manifests"):
        by_kind.setdefault(one["kind"], []).append(one)
    drivers = {one["metadata"]["name"]: {"driver": one} for one in by_kind["CSIDriver"]}
    for one in by_kind["StorageClass"]:
        drivers[one["provisioner"]]["class"] = one
    (cluster,), (own,) = by_kind["ClusterRole"], by_kind["Role"]
    look = [rule for rule in cluster["rules"] if {*rule["resources"]} <= {"nodes", "csinodes"}]
    return {"drivers": drivers, "rights": {"cluster": cluster["rules"], "own": own["rules"], "look": look}}


def cluster_objects() -> list[Any]:
    """Return what `nodeplug cluster manifests` prints, for the chart's own ServiceAccount."""
    return _for_release(_printed("version = 1\n[cluster]\n", "cluster", "manifests", "--namespace", NAMESPACE))


def dra_objects() -> dict[str, Any]:
    """Return what `nodeplug dra manifests` prints: the rights for the chart's ServiceAccount, and a class."""
    items = _for_release(_printed(CLAIMED, "dra", "manifests", "--namespace", NAMESPACE))
    (made,) = [one for one in items if one["kind"] == "DeviceClass"]
    return {"rights": [one for one in items if one is not made], "class": made}


def _for_release(items: list[Any]) -> list[Any]:
    """Return objects without their ServiceAccount, and with the chart's in place of it."""
    (account,) = [one["metadata"]["name"] for one in items if one["kind"] == "ServiceAccount"]
    for one in items:
        for subject in one.get("subjects", ()):
            subject["name"] = ACCOUNT
    text = json.dumps([one for one in items if one["kind"] != "ServiceAccount"])
    found: list[Any] = json.loads(text.replace(f"{NAMESPACE}:{account}", f"{NAMESPACE}:{ACCOUNT}"))
    return found


def rights(page: str) -> list[Any]:
    """Return the rules of the role that a page of docs/ has."""
    text = (HERE.parent / "docs" / page).read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in text.split("```yaml\n")[1:]]
    (role,) = [one for block in blocks for one in yaml.safe_load_all(block) if one["kind"] == "ClusterRole"]
    rules: list[Any] = role["rules"]
    return rules


def rendered(helm: str) -> str:
    """Return the manifests."""
    command = [helm, "template", "nodeplug", str(HERE / "chart"), "--namespace", "nodeplug"]
    values = ["--values", str(HERE / "manifests" / "values.yaml")]
    done = subprocess.run([*command, *values], capture_output=True, text=True, check=True)
    return HEAD + done.stdout


if __name__ == "__main__":
    objects: dict[str, Any] = {"csi": csi_objects(), "cluster": cluster_objects(), "dra": dra_objects()}
    objects |= {"networks": rights("networks.md"), "extender": rights("scheduler.md")}
    for name, found in objects.items():
        (FILES / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (HERE / "chart" / "crds").mkdir(exist_ok=True)
    shutil.copy(HERE / "crds" / CRD, HERE / "chart" / "crds" / CRD)
    if len(sys.argv) > 1:
        RENDERED.write_text(rendered(sys.argv[1]), encoding="utf-8")
