"""How kubelet finds FlexVolume drivers, acted out: who is probed when, and what floods the log."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeplug.testing import FlexCaller, FlexProber

GOOD = """#!/bin/sh\necho '{"status": "Success", "capabilities": {"attach": false}}'\n"""
BAD = "#!/bin/sh\necho oops\n"


@pytest.fixture
def prober(tmp_path: Path) -> Iterator[FlexProber]:
    folder = tmp_path / "plugins"
    folder.mkdir()
    made = FlexProber(folder, lambda driver: FlexCaller(folder, tmp_path, driver))
    yield made
    made.close()


def install(prober: FlexProber, text: str = GOOD, name: str = "acme~disk") -> Path:
    folder = prober.plugin_dir / name
    folder.mkdir(exist_ok=True)
    path = folder / name.rpartition("~")[2]
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_every_driver_is_asked_at_the_first_probe(prober: FlexProber) -> None:
    install(prober)
    install(prober, name="plain")
    assert sorted(prober.probe()) == ["acme~disk", "plain"]


def test_a_driver_that_did_not_change_keeps_its_memory(prober: FlexProber) -> None:
    install(prober)
    before = prober.probe()["acme~disk"]
    assert prober.probe()["acme~disk"] is before


def test_a_touched_driver_is_a_new_object(prober: FlexProber) -> None:
    path = install(prober)
    before = prober.probe()["acme~disk"]
    path.touch()
    assert prober.probe()["acme~disk"] is not before


def test_a_file_beside_the_driver_probes_it_again(prober: FlexProber) -> None:
    path = install(prober)
    before = prober.probe()["acme~disk"]
    path.with_name("driver.log").touch()
    assert prober.probe()["acme~disk"] is not before


def test_a_name_with_a_dot_is_no_event_and_no_driver(prober: FlexProber) -> None:
    path = install(prober)
    before = prober.probe()["acme~disk"]
    path.with_name(".driver.tmp").write_text("")
    install(prober, BAD, ".acme~new")
    assert prober.probe() == {"acme~disk": before}
    assert prober.failures == []


def test_a_driver_that_fails_at_the_first_probe_is_not_asked_again_before_a_change(prober: FlexProber) -> None:
    install(prober, BAD)
    for _ in range(3):
        prober.probe()
    assert len(prober.failures) == 1
    install(prober)
    assert "acme~disk" in prober.probe()


def test_a_driver_that_fails_later_is_asked_at_every_probe(prober: FlexProber) -> None:
    install(prober)
    prober.probe()
    install(prober, BAD)
    for _ in range(3):
        assert prober.probe() == {}
    assert len(prober.failures) == 3
    install(prober)
    assert "acme~disk" in prober.probe()


def test_an_empty_folder_that_appears_floods(prober: FlexProber) -> None:
    prober.probe()
    (prober.plugin_dir / "acme~disk").mkdir()
    for _ in range(3):
        prober.probe()
    assert len(prober.failures) == 3


def test_a_driver_that_is_unlinked_is_forgotten(prober: FlexProber) -> None:
    path = install(prober)
    prober.probe()
    path.unlink()
    assert prober.probe() == {}
    path.parent.rmdir()
    assert prober.probe() == {}
    assert prober.failures == []


def test_a_folder_that_is_renamed_away_floods(prober: FlexProber, tmp_path: Path) -> None:
    path = install(prober)
    prober.probe()
    path.parent.rename(tmp_path / "away")
    for _ in range(3):
        assert prober.probe() == {}
    assert len(prober.failures) == 3


def test_a_folder_that_is_renamed_in_is_found_whole(prober: FlexProber, tmp_path: Path) -> None:
    prober.probe()
    folder = install(prober, name=".acme~disk").parent
    (folder / ".acme~disk").unlink(missing_ok=True)
    (folder / "disk").write_text(GOOD)
    (folder / "disk").chmod(0o755)
    folder.rename(prober.plugin_dir / "acme~disk")
    assert "acme~disk" in prober.probe()
    assert prober.failures == []
