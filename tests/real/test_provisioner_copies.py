"""Copies of a driver whose ids are not the names that it is given, over a daemon that is killed as it is answered."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.real.consumers import ControlPlane
from tests.real.consumers.claims import Cluster, provisioning

from nodeplug.contract.journal import Journal
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.real
NAME = "numbered.acme"
SECTION = '[plugins.numbered]\nuses = "numbered:Numbered"\nisolation = "thread"\nconfig = {{ folder = "{folder}" }}\n'


@pytest.fixture(scope="module")
def numbered(cluster: ControlPlane) -> Iterator[Cluster]:
    folder = cluster.node.folder / "numbered"
    environment = {"PYTHONPATH": str(Path(__file__).parent)}
    with provisioning(cluster, more=SECTION.format(folder=folder), env=environment) as made:
        yield made


def volumes(cluster: Cluster) -> list[str]:
    return sorted(path.name for path in (cluster.daemon.root / "numbered").glob("[0-9]*"))


@pytest.mark.parametrize("wanted", [True, False], ids=["claim stays", "claim goes"])
def test_a_copy_that_was_made_before_its_daemon_knew_its_id_is_found_by_its_name(
    numbered: Cluster, wanted: bool
) -> None:
    """Only the driver knows it: the daemon has noted the name, and was killed before it heard of the id."""
    numbered.claim("source", storageClassName=NAME)
    source = numbered.bound("source")["spec"]["csi"]["volumeHandle"]
    (numbered.daemon.root / "numbered" / "die").touch()
    numbered.claim("copy", storageClassName=NAME, dataSource={"kind": "PersistentVolumeClaim", "name": "source"})
    until(lambda: not (numbered.daemon.root / "numbered" / "die").exists(), 60)
    numbered.daemon.kill()  # it is dead, and is collected
    copy = next(one for one in volumes(numbered) if one != source)
    if not wanted:
        numbered.delete("copy")
    numbered.daemon.start()
    if wanted:
        assert numbered.bound("copy")["spec"]["csi"]["volumeHandle"] == copy
        numbered.delete("copy")
    begun = Journal(numbered.daemon.paths.journal / "csi-provisioner")
    numbered.until("the end of the copy", lambda: not begun.entries() and volumes(numbered) == [source])
    numbered.delete("source")
    numbered.until("the end", lambda: not volumes(numbered))
