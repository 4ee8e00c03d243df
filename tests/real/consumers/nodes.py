"""A cluster of several whole nodes, each with a kubelet, a containerd and a daemon of its own.

Owns: their names, the cables between them, and the control plane, which is on the first one.
Refuses: schedulers: pods wait until a test starts one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.real.consumers.control_plane import ControlPlane
from tests.real.consumers.lab import Lab, open_lab
from tests.real.consumers.private_node import PrivateNode


@dataclass(frozen=True, slots=True)
class Nodes:
    """The cluster.

    Attributes:
        control: the control plane, reached from the first node.
        labs: the nodes, in order.
    """

    control: ControlPlane
    labs: Sequence[Lab]


@contextmanager
def open_nodes(
    folder: Path,
    names: Sequence[str],
    make_private_node: Callable[..., PrivateNode],
    plugins: str,
    *,
    resource: str,
    conflists: Sequence[Path],
    programs: Path,
    runtime: Path | None,
) -> Iterator[Nodes]:
    """Start everything, and end everything.

    Args:
        folder: an existing folder with a short path.
        names: of the nodes.
        make_private_node: makes one in a folder.
        plugins: the tables of each daemon; `{kubeconfig}` is where it finds the API server.
        resource: of these plugins; a node is ready when its kubelet has devices of it.
        conflists: network configurations.
        programs: the folder of kubelet and the control plane.
        runtime: the folder of containerd, its shim and ctr; None: those of PATH.

    Raises:
        PluginError: something did not start.
    """
    with ExitStack() as stack:
        privates = []
        for number, name in enumerate(names):
            (folder / str(number)).mkdir()
            private = make_private_node(folder / str(number) / "n", name=name)
            privates.append(stack.enter_context(private))
        (folder / "p").mkdir()
        control = ControlPlane(privates[0], folder / "p", programs, controllers=False, listen="0.0.0.0")
        stack.enter_context(control)
        labs = []
        for number, private in enumerate(privates):
            seen = control.seen_at(privates[0].join(private, number)) if number else control
            own = folder / str(number)
            kubeconfig = own / "kubeconfig"
            kubeconfig.write_text(seen.kubeconfig, encoding="utf-8")
            lab = open_lab(
                *(private, own, programs / "kubelet", plugins.format(kubeconfig=kubeconfig)),
                resource=resource,
                conflists=conflists,
                runtime=runtime,
                control_plane=seen,
            )
            labs.append(stack.enter_context(lab))
        yield Nodes(control, labs)
