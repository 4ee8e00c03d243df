import re
from pathlib import Path

import pytest

from nodeplug.config import Configuration, Supervisor, load
from nodeplug.loading.classes import validate_config
from nodeplug.loading.discovery import find

CONFIGS = Path(__file__).parents[2] / "configs"


def test_the_main_file_shows_every_key_with_its_default() -> None:
    shown = load(CONFIGS / "nodeplug.toml").supervisor
    assert shown == Supervisor()
    text = (CONFIGS / "nodeplug.toml").read_text()
    assert [name for name in Supervisor.model_fields if f"\n{name} = " not in text] == []


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.name)
def test_every_plugin_of_an_example_accepts_its_configuration(path: Path) -> None:
    configuration: Configuration = load(path)
    assert configuration.plugins
    for name, section in configuration.plugins.items():
        validate_config(name, find(section.uses or name), section.config)


def test_the_example_for_gpus_shows_every_key() -> None:
    text = (CONFIGS / "gpu.toml").read_text()
    keys = {path.rpartition(".")[2] for path in re.findall(r"^\| `([^`]+)`", gpu_table(), flags=re.MULTILINE)}
    assert [key for key in sorted(keys) if not re.search(rf"\b{key}\b(\]| =)", text)] == []


def gpu_table() -> str:
    page = (CONFIGS.parent / "docs" / "configuration.md").read_text()
    return page.partition("<!-- generated: plugin gpu -->")[2].partition("<!-- end -->")[0]
