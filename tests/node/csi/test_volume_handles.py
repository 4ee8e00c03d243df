"""The daemon says which volume options mean, for whoever writes a PersistentVolume."""

import json
from collections.abc import Iterator

import pytest

from nodeplug import PluginError
from nodeplug.commands import ask_daemon
from nodeplug.testing import ScratchNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScratchNode]:
    root = tmp_path_factory.mktemp("n")
    with ScratchNode(root, "[plugins.loopfile]\n[plugins.tmpfs]\n") as made:
        yield made


def asked(node: ScratchNode, driver: str, options: str) -> dict[str, str]:
    return ask_daemon(node.config_path, node.root, "volume-id", driver, options)


def test_the_plugin_says_which_volume_its_options_mean(node: ScratchNode) -> None:
    options = json.dumps({"name": "data", "size": "1Gi"})
    assert asked(node, "nodeplug/loopfile", options) == {"driver": "loopfile.nodeplug", "volume_handle": "data"}


def test_a_driver_that_names_no_volume_has_the_digest_that_flexvolume_has(node: ScratchNode) -> None:
    first, second = (asked(node, "nodeplug/tmpfs", text) for text in ('{"size": "1Mi"}', '{"size": "2Mi"}'))
    assert first["driver"] == "tmpfs.nodeplug"
    assert len(first["volume_handle"]) == 32
    assert first != second


@pytest.mark.parametrize(
    ("driver", "options", "said"),
    [
        ("nodeplug/loopfile", "{}", "name"),
        ("nodeplug/loopfile", "[]", "a JSON object whose values are texts"),
        ("nodeplug/loopfile", '{"name": 1}', "a JSON object whose values are texts"),
        ("nodeplug/loopfile", "{", "a JSON object whose values are texts"),
        ("acme/other", "{}", "acme/other"),
    ],
)
def test_what_means_no_volume_is_refused(node: ScratchNode, driver: str, options: str, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        asked(node, driver, options)
