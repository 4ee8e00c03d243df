"""The image driver over CSI, as kubelet calls it."""

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.programs import need

from nodeplug import mounted_at
from nodeplug.pb import csi_v1_pb2 as pb

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_loop_devices")]
DRIVER = "image.nodeplug"
CONFIG = """
[plugins.image.config]
max_overlay = "64Mi"
[plugins.image.config.roots.data]
path = "{root}"
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    need("mksquashfs")
    (tmp_path / "content").mkdir()
    (tmp_path / "content" / "weights").write_text("weights")
    made = tmp_path / "root" / "model.squashfs"
    made.parent.mkdir()
    subprocess.run(["mksquashfs", tmp_path / "content", made, "-quiet", "-no-progress"], check=True)
    return made


@pytest.fixture
def kubelet(start_kubelet: Callable[..., Any], image: Path) -> Any:
    return start_kubelet(CONFIG.format(root=image.parent))


@pytest.mark.programs("mkfs.ext4")
def test_pods_share_an_image_by_its_digest_and_each_writes_to_its_own_layer(kubelet: Any, image: Path) -> None:
    digest = f"sha256:{hashlib.sha256(image.read_bytes()).hexdigest()}"
    context, handle = {"path": image.name, "digest": digest}, f"data/{image.name}@{digest}"
    reader = kubelet.publish(DRIVER, handle, "a", context)
    writer = kubelet.publish(DRIVER, handle, "b", context | {"overlay": "8Mi"})
    (writer / "weights").write_text("mine")
    assert (reader / "weights").read_text() == "weights"
    assert len([path for path in kubelet.mounted() if "staged" in path or "staging" in path]) == 1
    request = pb.NodeGetVolumeStatsRequest(volume_id=handle, volume_path=str(writer))
    usage = kubelet.driver(DRIVER).NodeGetVolumeStats(request, timeout=60).usage
    assert 0 < next(one.total for one in usage if one.unit == pb.VolumeUsage.BYTES) < 8 << 20
    for pod in ("a", "b"):
        kubelet.unpublish(DRIVER, handle, pod)
    assert kubelet.mounted() == []


@pytest.mark.programs("mkfs.ext4")
def test_a_killed_daemon_leaves_the_pods_their_layers(kubelet: Any, image: Path) -> None:
    writer = kubelet.publish(DRIVER, f"data/{image.name}", "a", {"path": image.name, "overlay": "8Mi"})
    (writer / "mine").write_text("kept")
    kubelet.node.kill()
    kubelet.node.start()
    assert (writer / "mine").read_text() == "kept"
    kubelet.unpublish(DRIVER, f"data/{image.name}", "a")
    assert kubelet.mounted() == []


def test_an_image_of_another_node_is_not_found(kubelet: Any) -> None:
    with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
        kubelet.publish(DRIVER, "data/other", "a", {"path": "other"})
    assert mounted_at(str(kubelet.target("a"))) is None


def test_a_pod_may_name_an_image_itself_only_where_the_node_allows_it(
    start_kubelet: Callable[..., Any], kubelet: Any, image: Path
) -> None:
    inline = {"csi.storage.k8s.io/ephemeral": "true", "path": image.name}
    with pytest.raises(grpc.RpcError, match="inline"):
        kubelet.publish(DRIVER, "csi-1", "a", inline)
    other = start_kubelet(
        f'[plugins.image.config]\ninline = true\nroots = {{ data = {{ path = "{image.parent}" }} }}\n'
    )
    assert (other.publish(DRIVER, "csi-1", "a", inline) / "weights").read_text() == "weights"
