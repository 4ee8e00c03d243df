"""Write what the chart repeats of nodeplug, and the plain manifests that the chart renders.

python deploy/generate.py              chart/files/csi.json, from what `nodeplug csi manifests` prints
python deploy/generate.py HELM         manifests/nodeplug.yaml, too, by this helm
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
KNOWN: Final = HERE / "chart" / "files" / "csi.json"
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


def csi_objects() -> dict[str, Any]:
    """Return what `nodeplug csi manifests` prints of the bundled drivers, as the chart looks it up."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "nodeplug.toml"
        config.write_text(BUNDLED, encoding="utf-8")
        command = [sys.executable, "-m", "nodeplug", "csi", "manifests", "--json", "--config", str(config)]
        printed = json.loads(subprocess.run([*command, "--root", folder], capture_output=True, check=True).stdout)
    by_kind: dict[str, list[Any]] = {}
    for one in printed["items"]:
        by_kind.setdefault(one["kind"], []).append(one)
    drivers = {one["metadata"]["name"]: {"driver": one} for one in by_kind["CSIDriver"]}
    for one in by_kind["StorageClass"]:
        drivers[one["provisioner"]]["class"] = one
    (cluster,), (own,) = by_kind["ClusterRole"], by_kind["Role"]
    look = [rule for rule in cluster["rules"] if {*rule["resources"]} <= {"nodes", "csinodes"}]
    return {"drivers": drivers, "rights": {"cluster": cluster["rules"], "own": own["rules"], "look": look}}


def rendered(helm: str) -> str:
    """Return the manifests."""
    command = [helm, "template", "nodeplug", str(HERE / "chart"), "--namespace", "nodeplug"]
    values = ["--values", str(HERE / "manifests" / "values.yaml")]
    done = subprocess.run([*command, *values], capture_output=True, text=True, check=True)
    return HEAD + done.stdout


if __name__ == "__main__":
    KNOWN.write_text(json.dumps(csi_objects(), indent=1) + "\n", encoding="utf-8")
    if len(sys.argv) > 1:
        RENDERED.write_text(rendered(sys.argv[1]), encoding="utf-8")
