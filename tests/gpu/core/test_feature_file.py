"""The labels of the node as node-feature-discovery reads them: a file with a line for each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeplug_gpu.features import FeatureFile
from nodeplug_gpu.labels import labels

Make = Callable[..., Any]
WHOLE = {"sharing": "exclusive", "resource": "nvidia.com/gpu"}


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nfd") / "features.d" / "nodeplug-gpu"


def reconciled(node: Any) -> FeatureFile:
    made = FeatureFile(node.config, node.host)
    made.reconcile(node.tracker.inventory)
    return made


def test_a_file_has_a_line_for_each_label(make_node: Make, card: Make, path: Path) -> None:
    node = make_node([WHOLE], [card(0), card(1)], feature_file=str(path))
    reconciled(node)
    found = dict(line.split("=", 1) for line in path.read_text().splitlines())
    assert found == labels(node.tracker.inventory.snapshot, node.config)
    assert found["nvidia.com/gpu.count"] == "2"
    assert path.stat().st_mode & 0o777 == 0o644


def test_it_changes_with_the_cards_and_is_left_alone_otherwise(make_node: Make, card: Make, path: Path) -> None:
    node = make_node([WHOLE], [card(0), card(1)], feature_file=str(path))
    made, before = reconciled(node), path.stat().st_ino
    made.reconcile(node.tracker.inventory)
    assert path.stat().st_ino == before  # each change is a new file
    del node.cards[1]
    node.update()
    made.reconcile(node.tracker.inventory)
    assert "nvidia.com/gpu.count=1\n" in path.read_text()
    assert list(path.parent.iterdir()) == [path]


def test_it_stays_when_the_daemon_ends(make_node: Make, card: Make, path: Path) -> None:
    node = make_node([WHOLE], [card(0)], feature_file=str(path))
    reconciled(node).stop()
    assert path.exists()


def test_a_folder_that_cannot_be_written_is_told_once(
    make_node: Make, card: Make, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.write_text("")
    node = make_node([WHOLE], [card(0)], feature_file=str(path))
    made = reconciled(node)
    made.reconcile(node.tracker.inventory)
    (told,) = [one.getMessage() for one in caplog.records if "node-feature-discovery" in one.getMessage()]
    assert told.startswith("the labels of the cards cannot be written for node-feature-discovery: [Errno ")


def test_without_the_key_nothing_is_written(make_node: Make, card: Make) -> None:
    node = make_node([WHOLE], [card(0)])
    before = sorted(node.folder.rglob("*"))
    reconciled(node)
    assert sorted(node.folder.rglob("*")) == before
