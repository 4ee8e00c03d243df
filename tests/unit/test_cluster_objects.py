"""What a node makes of an object `Network`, whatever is in it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeplug import InvalidRequest, NetworkDefinition, TryAgain
from nodeplug.networks import objects
from nodeplug.networks.conflists import Conflists, taken_names
from nodeplug.networks.definitions import Definitions
from nodeplug.networks.door import Door, SectionDoor

BRIDGE = {"type": "nodeplug-bridge", "bridge": "br1"}


def network(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "blue", "generation": 3}, "spec": {"plugins": [BRIDGE], **spec}}


def judged(found: dict[str, Any], **taken: str) -> objects.Verdict:
    return objects.judge(found, taken, {"nodeplug-bridge"}, {"macvlan"}, ["/var/lib/cni"])


def test_an_object_becomes_a_list_with_its_name() -> None:
    verdict = judged(network(disableCheck=True))
    assert verdict.reason == "Ready"
    assert verdict.conflist == {"cniVersion": "1.0.0", "name": "blue", "disableCheck": True, "plugins": [BRIDGE]}
    assert verdict.entry(3) == {"ready": True, "reason": "Ready", "message": "", "observedGeneration": 3}


def test_an_executable_of_the_node_is_a_plugin_too() -> None:
    assert judged(network(plugins=[{"type": "macvlan"}])).reason == "Ready"


def test_a_plugin_that_nobody_serves_is_told() -> None:
    verdict = judged(network(plugins=[BRIDGE, {"type": "ghost"}]))
    assert (verdict.reason, verdict.conflist) == ("UnknownPlugin", None)
    assert "'ghost'" in verdict.message


def test_a_name_that_the_node_has_already_is_told() -> None:
    verdict = judged(network(), blue="/etc/cni/net.d/10-blue.conflist")
    assert (verdict.reason, verdict.conflist) == ("NameTaken", None)
    assert "/etc/cni/net.d/10-blue.conflist" in verdict.message


def test_a_path_that_the_node_does_not_allow_is_told() -> None:
    inside = {**BRIDGE, "ipam": {"type": "host-local", "dataDir": "/var/lib/cni/pools"}}
    assert judged(network(plugins=[inside])).reason == "Ready"
    verdict = judged(network(plugins=[{**BRIDGE, "ipam": {"type": "host-local", "dataDir": "/etc"}}]))
    assert (verdict.reason, verdict.conflist) == ("PathNotAllowed", None)
    assert verdict.message.startswith("plugins.ipam.dataDir is '/etc'")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"plugins": []}, "spec.plugins must be a list"),
        ({"plugins": None}, "spec.plugins must be a list"),
        ({"plugins": {"type": "x"}}, "spec.plugins must be a list"),
        ({"plugins": ["x"]}, "spec.plugins[0] must be an object"),
        ({"plugins": [BRIDGE, {}]}, "spec.plugins[1] must have a type"),
        ({"plugins": [{"type": "../sh"}]}, "the name of an executable, and has '../sh'"),
        ({"plugins": [{"type": 7}]}, "and has 7"),
        ({"plugins": [{"type": "nodeplug-networks"}]}, "would ask for this network again"),
        ({"plugins": [{**BRIDGE, "prevResult": {}}]}, "has 'prevResult'"),
        ({"plugins": [{**BRIDGE, "cniversion": "1.0.0"}]}, "has 'cniversion'"),
        ({"cniVersion": "0.2.0"}, "spec.cniVersion must be one of"),
        ({"cniVersion": ["1.0.0"]}, "spec.cniVersion must be one of"),
    ],
)
def test_a_broken_configuration_is_told(spec: dict[str, Any], said: str) -> None:
    verdict = judged(network(**spec))
    assert (verdict.reason, verdict.conflist) == ("InvalidConfiguration", None)
    assert said in verdict.message


@pytest.mark.parametrize("spec", [None, [], "x", 7])
def test_an_object_without_a_spec_is_told(spec: Any) -> None:
    assert judged({"metadata": {"name": "blue"}, "spec": spec}).reason == "InvalidConfiguration"


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        (None, True),
        ({}, True),
        ({"matchLabels": {"rack": "a"}}, True),
        ({"matchLabels": {"rack": "b"}}, False),
        ({"matchExpressions": [{"key": "rack", "operator": "In", "values": ["a", "b"]}]}, True),
        ({"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{}]}, False),
        ({"matchExpressions": 7}, False),
        ("rack=a", False),
    ],
)
def test_a_node_is_selected_by_its_labels(selector: Any, fits: bool) -> None:
    assert objects.is_for(network(nodeSelector=selector), {"rack": "a"}) is fits


def test_a_static_pod_is_known_by_the_uid_of_its_mirror() -> None:
    found = {"metadata": {"namespace": "n", "name": "p", "uid": "u", "annotations": {objects.MIRROR: "hash"}}}
    pod = objects.pod_of(found)
    assert [objects.is_the_pod(pod, uid) for uid in ("", "u", "hash", "other")] == [True, True, True, False]


# --- files


def test_a_list_is_withdrawn_while_it_is_used_and_then_removed(tmp_path: Path) -> None:
    files = Conflists(tmp_path / "conflists")
    files.write("blue", {"name": "blue"})
    assert files.read("blue") == {"name": "blue"}
    assert files.keep(set(), {"blue"}) == {"blue"}
    with pytest.raises(TryAgain, match="is being withdrawn"):
        files.read("blue")
    assert files.keep(set(), None) == {"blue"}
    assert files.keep(set(), set()) == set()
    assert files.read("blue") is None


def test_a_network_that_comes_back_is_no_longer_withdrawn(tmp_path: Path) -> None:
    files = Conflists(tmp_path / "conflists")
    files.write("blue", {"name": "blue"})
    files.keep(set(), {"blue"})
    files.write("blue", {"name": "blue", "plugins": []})
    assert files.keep({"blue"}, {"blue"}) == set()
    assert files.read("blue") == {"name": "blue", "plugins": []}


def test_a_conflist_that_somebody_changed_is_written_again(tmp_path: Path) -> None:
    files, blue = Conflists(tmp_path), {"name": "blue", "plugins": []}
    files.write("blue", blue)
    files.write("blue", dict(blue))
    (tmp_path / "blue.conflist").write_text("{}")
    files.write("blue", blue)
    assert files.read("blue") == blue
    (tmp_path / "blue.conflist").unlink()
    files.write("blue", blue)
    assert files.read("blue") == blue


@pytest.mark.parametrize(("text", "said"), [("[]", "is no object"), ("{", "cannot be read")])
def test_a_conflist_that_is_none_is_refused_for_now(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "blue.conflist").write_text(text)
    with pytest.raises(TryAgain, match=f"the configuration of network blue {said}"):
        Conflists(tmp_path).read("blue")


def test_names_of_a_folder_are_those_in_its_files(tmp_path: Path) -> None:
    (tmp_path / "10-a.conflist").write_text('{"name": "blue"}')
    (tmp_path / "20-b.conf").write_text("{half of an obj")
    (tmp_path / "30-c.json").write_text("[]")
    assert taken_names(tmp_path) == {"blue": str(tmp_path / "10-a.conflist")}


def test_definitions_are_known_after_a_restart(tmp_path: Path) -> None:
    definition = NetworkDefinition("pods", "blue", config='{"type": "x"}', annotations={"a": "b"})
    before = Definitions(tmp_path / "networks" / "definitions.json")
    metadata = {"namespace": "pods", "name": "blue", "annotations": {"a": "b"}}
    followed = {"pods/blue": {"metadata": metadata, "spec": {"config": '{"type": "x"}'}}}
    before.follow(lambda: followed)
    assert before.find("pods", "blue") == definition
    before.write(followed)
    assert Definitions(tmp_path / "networks" / "definitions.json").find("pods", "blue") == definition


def test_finding_a_definition_looks_at_no_other() -> None:
    class Followed(dict[str, Any]):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("there may be ten thousand")

        items = values = keys = copy = __iter__  # type: ignore[assignment]

    found = {"metadata": {"namespace": "pods", "name": "blue"}, "spec": {"config": "{}"}}
    followed, known = Followed({"pods/blue": found}), Definitions(Path("/none"))
    known.follow(lambda: followed)
    assert known.find("pods", "blue") == NetworkDefinition("pods", "blue", config="{}")
    assert known.find("pods", "red") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 2}', '{"version": 1, "definitions": {"a/b": 7}}'])
def test_a_damaged_file_of_definitions_knows_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "definitions.json"
    path.write_text(text)
    assert Definitions(path).find("a", "b") is None


def test_a_network_is_in_use_while_any_section_has_attachments_to_it(tmp_path: Path) -> None:
    async def story() -> list[frozenset[str] | None]:
        door = Door("node-1", 1.0, [], Definitions(tmp_path / "definitions"), Conflists(tmp_path / "conflists"))
        seen = [door.used]
        for section, names in (("a", ["blue"]), ("b", ["green"]), ("a", []), ("b", [])):
            SectionDoor(door, section).hold(names)
            seen.append(door.used)
        return seen

    seen = [None if one is None else set(one) for one in asyncio.run(story())]
    assert seen == [None, {"blue"}, {"blue", "green"}, {"green"}, set()]


def test_a_network_that_was_published_with_a_path_that_is_not_allowed_any_more_is_refused(tmp_path: Path) -> None:
    conflists = Conflists(tmp_path / "conflists")
    conflists.write("blue", {"name": "blue", "plugins": [{**BRIDGE, "ipam": {"dataDir": "/etc"}}]})

    async def story() -> None:
        door = Door("node-1", 1.0, ["/var/lib/cni"], Definitions(tmp_path / "definitions"), conflists)
        with pytest.raises(InvalidRequest, match=r"network blue: plugins.ipam\.dataDir is '/etc'"):
            door.conflist("blue")
        assert door.conflist("green") is None

    asyncio.run(story())
