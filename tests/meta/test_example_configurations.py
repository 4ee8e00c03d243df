from pathlib import Path

import pytest

from nodeplug.config import Configuration, Supervisor, load
from nodeplug.registry import find, validate_config

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
