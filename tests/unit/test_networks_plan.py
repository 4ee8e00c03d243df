"""What the plugin `networks` makes of the configuration of a network."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from nodeplug import InvalidRequest
from nodeplug_net.networks.config import NetworksConf
from nodeplug_net.networks.plan import Planner


def default(folder: Path, document: object) -> Any:
    """Return the default network, which is a file of the node."""
    file = folder / "blue.conflist"
    file.write_text(json.dumps(document))
    conf = NetworksConf.model_validate({"clusterNetwork": str(file)})
    unasked = cast("Any", None)  # neither the cluster nor the request is looked at
    return Planner(unasked, {"nodeplug-networks"}, folder).default(unasked, conf)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "must be an object"),
        ({"plugins": []}, "plugins must be a list with at least one"),
        ({"plugins": {"type": "bridge"}}, "plugins must be a list with at least one"),
        ({"plugins": [{"type": "bridge"}, {}]}, "has a plugin without a type"),
        ({"plugins": ["bridge"]}, "has a plugin without a type"),
        ({}, "has a plugin without a type"),
        ({"type": "../sh"}, "names '../sh'; a plugin is named by its file"),
        ({"type": "bridge", "ipam": {"type": "a/b"}}, "names 'a/b'; a plugin is named by its file"),
        ({"type": "bridge", "name": "../x"}, "has the name '../x'; use letters"),
        ({"plugins": [{"type": "nodeplug-networks"}]}, "names 'nodeplug-networks', which would look for it again"),
        ({"type": "bridge", "ipam": {"type": "nodeplug-networks"}}, "names 'nodeplug-networks', which would look"),
        ({"type": "bridge", "x": [{"Type": "nodeplug-networks"}]}, "names 'nodeplug-networks', which would look"),
    ],
)
def test_a_configuration_that_cannot_run_is_refused_with_its_file(tmp_path: Path, document: object, said: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"{tmp_path}/blue\.conflist:? {said}"):
        default(tmp_path, document)


def test_a_single_plugin_is_a_list_of_one_with_the_name_of_its_file(tmp_path: Path) -> None:
    assert default(tmp_path, {"type": "bridge"}) == {
        "name": "blue",
        "cniVersion": "0.1.0",
        "plugins": [{"type": "bridge"}],
    }
