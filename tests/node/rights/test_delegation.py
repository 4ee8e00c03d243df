"""Which request a plugin may delegate, tried with a runtime, a daemon and a foreign delegate that notes its calls."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodeplug.testing import CniError, CniRuntime, Sandbox, ScratchNode, forked

INNER = """#!/bin/sh
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_ARGS" >> {folder}/calls
[ "$CNI_COMMAND" != ADD ] || echo '{{"cniVersion": "1.1.0"}}'
"""


@dataclass(frozen=True)
class Runtime:
    """A runtime whose only network is the hostile plugin's.

    Attributes:
        node: the daemon.
        folder: has the delegate, and `calls`.
        host: where containers are attached.
        pod: a container.
    """

    node: ScratchNode
    folder: Path
    host: Sandbox
    pod: Sandbox

    def does(self, work: Callable[[CniRuntime], object], **keys: Any) -> str:
        """Do something with the network that has these keys; return what went wrong."""
        conflist = {"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "hostile", **keys}]}
        runtime = CniRuntime(conflist, [self.node.paths.cni_bin, self.folder], cache_dir=self.folder / "cache")
        try:
            with self.host.netns.entered():
                work(runtime)
        except CniError as error:
            return str(error)
        return ""

    def adds(self, **keys: Any) -> str:
        return self.does(lambda runtime: runtime.attach("c1", self.pod.path), **keys)

    def calls(self) -> list[str]:
        """Return what the delegate was called with."""
        found = self.folder / "calls"
        return found.read_text().splitlines() if found.exists() else []


@pytest.fixture(params=["process", "thread"])
def runtime(request: pytest.FixtureRequest, short_path: Path, tmp_path: Path) -> Iterator[Runtime]:
    inner = tmp_path / "inner"
    inner.write_text(INNER.format(folder=tmp_path))
    inner.chmod(0o755)
    env: Mapping[str, str] = {"PYTHONPATH": os.pathsep.join([*forked.search_path(), str(Path(__file__).parent)])}
    text = f'[plugins.hostile]\nuses = "hostile_plugins:Network"\nisolation = "{request.param}"\n'
    supervisor = 'listen = ""\ninstall = true\nnative_entrypoints = false\n'
    with (
        Sandbox(tmp_path / "host") as host,
        Sandbox(tmp_path / "pod") as pod,
        ScratchNode(short_path, text, env=env, fork=True, supervisor=supervisor) as node,
    ):
        yield Runtime(node, tmp_path, host, pod)


def test_a_plugin_delegates_the_request_that_it_serves(runtime: Runtime) -> None:
    assert runtime.adds() == ""
    assert runtime.calls() == ["ADD c1 eth0 "]


def test_interface_arguments_and_network_are_the_plugin_s_choice(runtime: Runtime) -> None:
    assert runtime.adds(change="interface and arguments") == ""
    assert runtime.calls() == ["ADD c1 net1 IgnoreUnknown=1"]


def test_another_thread_of_the_plugin_may_delegate_during_the_call(runtime: Runtime) -> None:
    assert runtime.adds(change="another thread") == ""
    assert runtime.calls() == ["ADD c1 eth0 "]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("path", "its CNI_PATH is not that of the request that is being served"),
        ("container", "its container id is not that of the request that is being served"),
        ("namespace", "its container's namespace is not that of the request that is being served"),
        ("host namespace", "its host namespace is not that of the request that is being served"),
        ("id", "is not serving a CNI request '00000000'"),
    ],
)
def test_what_a_plugin_may_not_choose_is_refused(runtime: Runtime, change: str, said: str) -> None:
    assert said in runtime.adds(change=change)
    assert runtime.calls() == []


def test_a_request_that_has_ended_is_refused(runtime: Runtime) -> None:
    assert runtime.adds(change="later") == ""
    assert "is not serving a CNI request" in runtime.adds(change="earlier")
    assert runtime.calls() == []


def test_a_del_does_not_allow_an_add(runtime: Runtime) -> None:
    assert runtime.adds() == ""
    said = runtime.does(lambda one: one.detach("c1", runtime.pod.path), change="DEL becomes ADD")
    assert "CniDel is being served, which allows CniDel, found CniAdd" in said
    assert runtime.calls() == ["ADD c1 eth0 "]


def test_a_gc_deletes_no_valid_attachment(runtime: Runtime) -> None:
    valid = [("c1", "eth0")]
    assert "is a valid one of the GC" in runtime.does(lambda one: one.gc(valid), ended="c1")
    assert runtime.calls() == []
    assert runtime.does(lambda one: one.gc(valid), ended="c2") == ""
    assert runtime.calls() == ["DEL c2 eth0 "]
