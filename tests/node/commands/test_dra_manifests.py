"""`nodeplug dra manifests`: what a cluster needs for the sections of a configuration that serve claims."""

from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.unprivileged
TWO = """
[plugins.here]
uses = "hostdev"
serve = "dra"
[[plugins.here.config.resources]]
resource = "example.com/fuse"
groups = [{ count = 10, nodes = [{ path = "/dev/fuse" }] }]
[plugins.there]
uses = "hostdev"
serve = "dra"
node_names = ["another-*"]
[[plugins.there.config.resources]]
resource = "example.com/fuse"
groups = [{ count = 20, nodes = [{ path = "/dev/fuse" }] }]
[[plugins.there.config.resources]]
resource = "example.com/kvm"
groups = [{ count = 20, nodes = [{ path = "/dev/kvm" }] }]
[plugins.plain]
uses = "hostdev"
[[plugins.plain.config.resources]]
resource = "example.com/tun"
groups = [{ count = 20, nodes = [{ path = "/dev/net/tun" }] }]
"""


@pytest.fixture
def node(node: Any) -> Any:
    node.configure(TWO)
    return node


def classes(node: Any, *arguments: str) -> dict[str, dict[str, Any]]:
    """Return the specifications of the printed classes by name."""
    done = node.run("dra manifests", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    made = yaml.safe_load_all(done.stdout)
    return {one["metadata"]["name"]: one["spec"] for one in made if one["kind"] == "DeviceClass"}


def test_each_resource_that_is_served_by_claims_has_a_class_also_one_of_another_node(node: Any) -> None:
    found = classes(node)
    assert [*found] == ["fuse.example.com", "kvm.example.com"]
    (selector,) = found["fuse.example.com"]["selectors"]
    assert all(name in selector["cel"]["expression"] for name in ("here.nodeplug.io", "there.nodeplug.io"))


def test_resources_are_extended_ones_where_that_is_said(node: Any) -> None:
    found = classes(node, "--extended-resource", "example.com/k*")
    assert [name for name, spec in found.items() if "extendedResourceName" in spec] == ["kvm.example.com"]


def test_a_resource_that_no_section_serves_is_refused_with_those_that_are(node: Any) -> None:
    done = node.run("dra manifests", "--extended-resource", "example.com/tun")
    assert done.returncode == 1
    assert "no section serves 'example.com/tun' by claims; these are: example.com/fuse, example.com/kvm" in done.stderr


def test_without_such_a_section_it_says_what_to_do(node: Any) -> None:
    node.configure("[plugins.tmpfs]")
    done = node.run("dra manifests")
    assert done.returncode == 1
    assert 'serve = "dra"' in done.stderr


def test_daemons_are_in_pods_or_users_and_not_both(node: Any) -> None:
    done = node.run("dra manifests", "--service-account", "a", "--users-of", "b")
    assert (done.returncode, done.stdout) == (1, "")
    assert "give one" in done.stderr


def test_a_resource_that_is_only_counted_has_no_class(node: Any) -> None:
    cards = 'simulated = [{ memory = "8GiB" }]\n[[plugins.gpu.config.resources]]\nsharing = "memory"'
    node.configure(f'[plugins.gpu]\nserve = "dra"\n[plugins.gpu.config]\ndriver = "simulated"\n{cards}\n')
    assert [*classes(node)] == ["gpu-mem.aliyun.com"]


def test_json_is_a_list_of_the_same_objects(node: Any) -> None:
    answer = node.json("dra manifests", "--users-of", "nodeplug:node")
    assert answer["kind"] == "List"
    assert [*yaml.safe_load_all(node.run("dra manifests", "--users-of", "nodeplug:node").stdout)] == answer["items"]
