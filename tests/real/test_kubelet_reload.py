"""The configuration changes while pods come and go, and kubelet keeps what it has."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.real.consumers import Lab

pytestmark = pytest.mark.soak
ONE = {"example.com/widget": 1}
RELOADS = 20
Difference = Callable[[], list[str]]
PluginsOf = Callable[[Lab], str]


def with_environment(plugins: str, value: str) -> str:
    """Give the containers that get a device one more variable."""
    return plugins.replace("groups = ", f'env = {{ WIDGET = "{value}" }}\ngroups = ')


def test_a_reload_that_brings_a_driver_ends_no_stream(lab: Lab, difference: Difference, plugins_of: PluginsOf) -> None:
    plugins = plugins_of(lab)
    scratch = '[plugins.scratch]\nuses = "tmpfs"\n[plugins.scratch.config]\ndriver = "nodeplug/scratch"\n'

    def loaded() -> bool:
        return "scratch" in {plugin["name"] for plugin in lab.daemon.status()["plugins"]}

    before = (lab.resource()["socket"], lab.streams_ended())
    lab.daemon.configure(plugins + scratch)
    lab.kubelet.wait_for("the new plugin", loaded)
    assert lab.daemon.run("install").returncode == 0
    volume = {"flexVolume": {"driver": "nodeplug/scratch", "options": {"size": "1Mi"}}}
    lab.run("scratched", limits=ONE, volumes={"/memory": volume})
    assert lab.mount_type("scratched", "/memory") == "tmpfs"
    lab.kubelet.drop("scratched")
    lab.daemon.configure(plugins)
    lab.kubelet.wait_for("the old configuration", lambda: not loaded())
    assert lab.daemon.run("install").returncode == 0
    assert (lab.resource()["socket"], lab.streams_ended()) == before
    assert difference() == []


def test_a_changed_device_plugin_serves_new_pods_anew_and_leaves_the_old_ones_alone(
    lab: Lab, difference: Difference, plugins_of: PluginsOf
) -> None:
    plugins = plugins_of(lab)
    lab.run("unchanged", limits=ONE)
    before = (lab.kubelet.container("unchanged"), lab.devices_of("unchanged"))
    lab.reload(with_environment(plugins, "changed"))
    lab.run("changed", limits=ONE)
    assert "WIDGET=changed" in lab.kubelet.execute("changed", "/bin/env").split()
    assert (lab.kubelet.container("unchanged"), lab.devices_of("unchanged")) == before
    lab.reload(plugins)
    assert difference() == []


def test_pods_are_admitted_during_reloads_of_the_device_plugin_which_end_no_stream(
    lab: Lab, difference: Difference, plugins_of: PluginsOf
) -> None:
    plugins = plugins_of(lab)
    socket, ended = lab.resource()["socket"], lab.streams_ended()
    lab.reload(with_environment(plugins, "number-first"))

    def change_again_and_again() -> None:
        for number in range(RELOADS):
            lab.reload(with_environment(plugins, f"number-{number}"))

    with ThreadPoolExecutor(1) as pool:
        changes = pool.submit(change_again_and_again)
        pods = 0
        while not changes.done() or pods == 0:
            name = f"admitted-{pods}"
            lab.run(name, limits=ONE)
            assert "WIDGET=number-" in lab.kubelet.execute(name, "/bin/env")
            lab.kubelet.drop(name)
            pods += 1
        changes.result()
    assert (lab.resource()["socket"], lab.streams_ended()) == (socket, ended)
    assert f"Endpoint for device plugin {lab.name} stopped" not in lab.kubelet.log
    lab.reload(plugins)
    assert difference() == []
