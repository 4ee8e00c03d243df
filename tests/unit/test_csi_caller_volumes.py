"""Which volumes kubelet's records say that a CSI driver has."""

import json
from pathlib import Path

from nodeplug.testing.csi_caller import CsiCaller
from nodeplug.testing.csi_caller.volumes import RECORD


def test_a_driver_has_the_volumes_whose_records_name_it(tmp_path: Path) -> None:
    for pod, name, driver in (("u1", "a", "mine"), ("u2", "b", "mine"), ("u2", "c", "of-others")):
        folder = tmp_path / "pods" / pod / "volumes" / "kubernetes.io~csi" / name
        folder.mkdir(parents=True)
        (folder / RECORD).write_text(json.dumps({"driverName": driver}))
    found = {
        driver: [(pod.uid, name) for pod, name in CsiCaller(tmp_path, driver).volumes()] for driver in ("mine", "x")
    }
    assert found == {"mine": [("u1", "a"), ("u2", "b")], "x": []}
