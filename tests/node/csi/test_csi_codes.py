"""The codes of calls that meet another one, or cannot be undone: kubelet and provisioners act on the code alone."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.node.csi.test_csi_node import answered, refused
from tests.suites import divided

from nodeplug.testing.waiting import until

pytestmark = pytest.mark.node
GUESTS = Path(__file__).parent / "guests"
PLUGIN = '[plugins.slow]\nuses = "slow:Slow"\nconfig = {{ folder = "{}" }}\n'
DRIVER = "slow.acme"


@pytest.fixture
def kubelet(start_kubelet: Callable[..., Any], tmp_path: Path) -> Iterator[Any]:
    yield start_kubelet(PLUGIN.format(tmp_path), env={"PYTHONPATH": str(GUESTS)})
    for name in ("hold", "keep"):
        (tmp_path / name).unlink(missing_ok=True)


@pytest.mark.parametrize("second", divided(["a", "b"], {"a"}))
def test_a_call_for_a_volume_that_is_still_being_staged_is_told_to_come_again(
    kubelet: Any, tmp_path: Path, second: str
) -> None:
    """Not after minutes: kubelet and provisioners would have given up by themselves, and know nothing."""
    (tmp_path / "hold").touch()

    def publish(pod: str) -> tuple[str, str]:
        return answered(lambda: kubelet.publish(DRIVER, "one", pod, {"name": "one"}))

    with ThreadPoolExecutor() as others:
        first = others.submit(publish, "a")
        try:
            until((tmp_path / "inside").exists)
            code, text = publish(second)  # the caller waits for a minute at most, the first call for ever
            assert not first.done()
        finally:
            (tmp_path / "hold").unlink()
        assert (code, first.result()) == ("ABORTED", ("OK", ""))
    assert "is still running" in text
    assert publish(second) == ("OK", "")
    for pod in {"a", second}:
        kubelet.unpublish(DRIVER, "one", pod)
    assert (kubelet.mounted(), kubelet.node.status()["volumes"]) == ([], [])


def test_a_failure_whose_undo_fails_is_never_final_for_the_caller(kubelet: Any, tmp_path: Path) -> None:
    """With another code kubelet would take the volume for not mounted, and never unmount it."""
    (tmp_path / "keep").touch()
    code, text = refused(lambda: kubelet.publish(DRIVER, "one", "a", {"name": "one"}))
    assert code == "UNAVAILABLE"
    assert "the disk is on fire; and what was half done could not be undone" in text
    (tmp_path / "keep").unlink()
    until((tmp_path / "let go").exists)
    assert kubelet.publish(DRIVER, "one", "a", {"name": "one"}).is_mount()
    kubelet.unpublish(DRIVER, "one", "a")
    assert (kubelet.mounted(), kubelet.node.status()["volumes"]) == ([], [])
