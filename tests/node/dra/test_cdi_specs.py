"""How the runtime that is acted out reads CDI specs."""

import json
from pathlib import Path
from typing import Any

import pytest

from nodeplug.testing.dra import CdiSpecs, UnresolvableDevices

pytestmark = pytest.mark.unprivileged


def write(folder: Path, name: str, *devices: dict[str, Any], **more: Any) -> None:
    folder.mkdir(exist_ok=True)
    document = {"cdiVersion": "0.5.0", "kind": "acme.example.com/gpu", "devices": list(devices), **more}
    (folder / name).write_text(json.dumps(document))


def device(name: str, *env: str) -> dict[str, Any]:
    return {"name": name, "containerEdits": {"env": list(env) or [f"CARD={name}"]}}


def test_edits_of_a_spec_come_first_and_the_last_device_wins(tmp_path: Path) -> None:
    write(tmp_path, "a.json", device("one", "A=1"), device("two", "A=2"), containerEdits={"env": ["A=0", "B=0"]})
    found = CdiSpecs([tmp_path]).resolve(["acme.example.com/gpu=one", "acme.example.com/gpu=two"])
    assert found.env == {"A": "2", "B": "0"}


def test_a_file_with_another_ending_is_no_spec(tmp_path: Path) -> None:
    write(tmp_path, "a.json.tmp", device("one"))
    assert CdiSpecs([tmp_path]).devices() == frozenset()


def test_a_folder_that_comes_later_wins(tmp_path: Path) -> None:
    write(tmp_path / "etc", "a.json", device("one", "A=etc"))
    write(tmp_path / "run", "a.json", device("one", "A=run"))
    found = CdiSpecs([tmp_path / "etc", tmp_path / "run"]).resolve(["acme.example.com/gpu=one"])
    assert found.env == {"A": "run"}


def test_a_device_that_two_files_of_a_folder_define_cannot_be_resolved(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        write(tmp_path, name, device("one"))
    with pytest.raises(UnresolvableDevices, match="conflicting device"):
        CdiSpecs([tmp_path]).resolve(["acme.example.com/gpu=one"])


@pytest.mark.parametrize(
    ("devices", "more", "words"),
    [
        ([{"name": "one", "containerEdits": {}}], {}, "empty device edits"),
        ([device("one", "=A")], {}, "invalid environment variable"),
        ([device("-one")], {}, "invalid device name"),
        ([device("one"), device("one")], {}, "multiple device"),
        ([device("one")], {"kind": "gpu"}, "invalid kind"),
        ([device("one")], {"cdiVersion": "9"}, "invalid version"),
        ([], {}, "no devices"),
    ],
)
def test_a_mistake_makes_a_whole_file_count_for_nothing(tmp_path: Path, devices: Any, more: Any, words: str) -> None:
    write(tmp_path, "a.json", *devices, **more)
    with pytest.raises(UnresolvableDevices, match=words):
        CdiSpecs([tmp_path]).resolve(["acme.example.com/gpu=one"])


def test_a_file_that_is_half_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"cdiVersion"')
    with pytest.raises(UnresolvableDevices, match=r"a\.json"):
        CdiSpecs([tmp_path]).resolve(["acme.example.com/gpu=one"])
