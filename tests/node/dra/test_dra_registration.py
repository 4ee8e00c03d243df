"""How the kubelet that is acted out gets to know DRA drivers, and what becomes of their slices without them."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.node.dra.acted_driver import ActedDriver, leave_dead
from tests.node.dra.objects import DRIVER, card, slice_of

from nodeplug.testing.dra import DraKubelet, ResourceApi
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.unprivileged


def test_a_driver_is_found_by_its_socket_and_told_so(kubelet: DraKubelet) -> None:
    with ActedDriver(kubelet.plugins_registry) as driver:
        kubelet.until_registered(DRIVER)
        until(lambda: driver.verdicts == [""])
    until(lambda: kubelet.instances.of(DRIVER) == [])


def test_the_name_of_the_service_is_no_version_and_is_refused_every_second(kubelet: DraKubelet) -> None:
    long = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
    with ActedDriver(kubelet.plugins_registry, versions=[long]) as driver:
        until(lambda: len(driver.verdicts) > 1)
    assert f'none of services supported by the plugin (["{long}"])' in driver.verdicts[0]
    assert '(["v1.DRAPlugin" "v1beta1.DRAPlugin"])' in driver.verdicts[0]


def test_the_first_known_version_of_the_list_is_spoken(kubelet: DraKubelet) -> None:
    with ActedDriver(kubelet.plugins_registry, versions=["v9.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAPlugin"]):
        kubelet.until_registered(DRIVER)
        assert kubelet.instances.of(DRIVER)[0].service == "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"


def test_a_plugin_of_another_type_is_refused(kubelet: DraKubelet) -> None:
    with ActedDriver(kubelet.plugins_registry, kind="DraPlugin") as driver:
        until(lambda: bool(driver.verdicts))
    assert "no handler registered for plugin type: DraPlugin" in driver.verdicts[0]


def test_of_two_instances_the_last_registered_is_asked_while_it_is_connected(kubelet: DraKubelet) -> None:
    with ActedDriver(kubelet.plugins_registry, instance="a") as first:
        kubelet.until_registered(DRIVER)
        second = ActedDriver(kubelet.plugins_registry, instance="b")
        kubelet.until_registered(DRIVER, 2)
        chosen = kubelet.instances.chosen(DRIVER)
        assert chosen is not None
        assert chosen.endpoint == second.endpoint
        second.kill()
        chosen = kubelet.instances.chosen(DRIVER)
        assert chosen is not None
        assert chosen.endpoint == first.endpoint


def test_one_endpoint_is_not_registered_twice(kubelet: DraKubelet) -> None:
    with ActedDriver(kubelet.plugins_registry, instance="a") as first:
        kubelet.until_registered(DRIVER)
        with ActedDriver(kubelet.plugins_registry, instance="b", endpoint=str(first.endpoint)) as second:
            until(lambda: bool(second.verdicts))
    assert "already registered" in second.verdicts[0]


def test_a_killed_driver_is_known_as_long_as_its_socket_is_there(kubelet: DraKubelet) -> None:
    serve = f"""
from pathlib import Path
from tests.node.dra.acted_driver import ActedDriver
ActedDriver(Path({str(kubelet.plugins_registry)!r})).ended.wait(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", serve], env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
    ) as process:
        kubelet.until_registered(DRIVER)
        process.kill()
    (instance,) = kubelet.instances.of(DRIVER)
    until(lambda: not instance.connected)
    until(lambda: kubelet.wiped == [DRIVER])
    assert kubelet.instances.of(DRIVER) == [instance]
    instance.registration.unlink()
    until(lambda: kubelet.instances.of(DRIVER) == [])


def test_a_socket_at_which_nobody_listens_is_tried_again(kubelet: DraKubelet) -> None:
    leave_dead(kubelet.plugins_registry / "dead.sock")
    until(lambda: sum("dial failed" in one for one in kubelet.instances.refusals) > 1)


def test_slices_are_deleted_when_kubelet_starts_and_getinfo_is_asked_again(
    kubelet: DraKubelet, api: ResourceApi
) -> None:
    with ActedDriver(kubelet.plugins_registry):
        kubelet.until_registered(DRIVER)
        api.create("resourceslices", slice_of(card("one")))
        api.create("resourceslices", slice_of(card("one"), name="elsewhere", nodeName="node-2"))
        kubelet.restart()
        assert [one["metadata"]["name"] for one in api.slices()] == ["elsewhere"]
        kubelet.until_registered(DRIVER)
        assert kubelet.instances.asked[DRIVER] == 2


def test_slices_are_deleted_some_time_after_the_last_instance_is_gone(kubelet: DraKubelet, api: ResourceApi) -> None:
    with ActedDriver(kubelet.plugins_registry, instance="a"):
        kubelet.until_registered(DRIVER)
        with ActedDriver(kubelet.plugins_registry, instance="b"):
            kubelet.until_registered(DRIVER, 2)
        kubelet.until_registered(DRIVER)
        api.create("resourceslices", slice_of(card("one")))
        api.create("resourceslices", slice_of(card("one"), name="other", driver="b.example.com"))
        assert kubelet.wiped == []
    until(lambda: kubelet.wiped == [DRIVER])
    assert [one["metadata"]["name"] for one in api.slices()] == ["other"]


def test_slices_of_a_driver_that_is_back_in_time_are_kept(kubelet: DraKubelet, api: ResourceApi) -> None:
    kubelet.instances.timeouts = replace(kubelet.instances.timeouts, wipe=60.0)  # in time also on a machine under load
    with ActedDriver(kubelet.plugins_registry, instance="a"):
        kubelet.until_registered(DRIVER)
        api.create("resourceslices", slice_of(card("one")))
    with ActedDriver(kubelet.plugins_registry, instance="b") as back:
        kubelet.until_registered(DRIVER)
        until(lambda: bool(back.verdicts))
        assert len(api.slices()) == 1
