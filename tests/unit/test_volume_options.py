"""Where the options of a volume come from when a caller knows its id alone."""

from types import SimpleNamespace
from typing import Any

import pytest

from nodeplug import VolumeId
from nodeplug.volumes import provisioning


def published(driver: str, volume: str, **options: str) -> Any:
    return SimpleNamespace(volume=SimpleNamespace(driver=driver, volume_id=VolumeId(volume)), options=options)


def steps(*hooks: str, targets: tuple[Any, ...] = ()) -> Any:
    composition = SimpleNamespace(has=lambda hook: hook in hooks)
    return SimpleNamespace(driver="acme/disk", composition=composition, ledger=SimpleNamespace(targets=lambda: targets))


def test_a_driver_without_a_list_has_those_of_where_the_volume_is_published() -> None:
    targets = (
        published("other/disk", "v", whose="another driver's"),
        published("acme/disk", "w", whose="another volume's"),
        published("acme/disk", "v"),
        published("acme/disk", "v", whose="its own"),
    )
    assert provisioning._options_of(steps(targets=targets), VolumeId("v")) == {"whose": "its own"}
    assert provisioning._options_of(steps(targets=targets), VolumeId("x")) == {}


def test_a_driver_with_a_list_tells_them_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"v": SimpleNamespace(options={"whose": "the driver's"})}
    monkeypatch.setattr(provisioning, "one", lambda _, volume: told[volume])
    targets = (published("acme/disk", "v", whose="its own"),)
    assert provisioning._options_of(steps("volume_list", targets=targets), VolumeId("v")) == {"whose": "the driver's"}
