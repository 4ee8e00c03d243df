"""`nodeplug cluster`: publishes a node's state to the cluster, and lists networks that the node refuses.

Owns: their options and output.
Refuses: to publish, which the daemon does.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from nodeplug.cli.csi import Kubeconfig
from nodeplug.cli.group import Subcommands, say
from nodeplug.commands import DEFAULT, Config, Json, Root, print_json
from nodeplug.contract.errors import InUse, NotReady

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from nodeplug.config import Configuration
    from nodeplug.kubeapi.client import Client
    from nodeplug.networks.refused import RefusedNetwork

_T = TypeVar("_T")
app = typer.Typer(cls=Subcommands, add_completion=False, rich_markup_mode="markdown", no_args_is_help=True)
Namespace = Annotated[str, typer.Option("--namespace", metavar="NAME", help="Of the pods that run the daemon.")]


@app.callback()
def cluster() -> None:
    """Prepare a cluster for nodes that publish what they have, and remove it again.

    Example: `nodeplug cluster manifests | kubectl apply -f -`
    """


@app.command()
def manifests(
    namespace: Namespace = "kube-system", config: Config = DEFAULT, root: Root = None, as_json: Json = False
) -> None:
    """Print who may publish for a node: a ServiceAccount, its rights, and a policy that leaves each node its own.

    The rights are those for what `publish` of `[cluster]` names. Kubernetes 1.32 or newer says in a pod's token on
    which node it is; before, use kubelet's own kubeconfig. Nothing is applied, and no daemon is asked.

    Example: `nodeplug cluster manifests --namespace nodeplug | kubectl apply -f -`
    """
    from nodeplug.cluster.manifests import manifests as manifests_of
    from nodeplug.config import ClusterSection, load
    from nodeplug.kubeapi.printed import as_list, as_yaml

    section = load(config, root).cluster
    if section is None or not section.enabled:
        say("warning: the daemon publishes nothing: the configuration has no [cluster]")
    made = manifests_of(namespace, (section or ClusterSection()).publish)
    if as_json:
        print_json(as_list(made))
    else:
        print(as_yaml(made), end="")


@app.command()
def withdraw(
    kubeconfig: Kubeconfig = None,
    node: Annotated[
        str, typer.Option("--node", metavar="NAME", help="The node.", show_default="this one, as configured")
    ] = "",
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Remove what the daemon has written about a node: labels, annotations, conditions, ConfigMaps.

    What others have set stays. Annotations of pods go with the pods, and events after an hour. Stop the daemon first,
    or take `[cluster]` out of its configuration and restart it: otherwise it would write everything again.
    `nodeplug uninstall` does the same.

    Example: `nodeplug cluster withdraw --kubeconfig /etc/kubernetes/admin.conf`
    """
    from nodeplug.config import load, node_name

    configuration = load(config, root)
    name = node or node_name(configuration.supervisor)
    if not node or node == node_name(configuration.supervisor):
        refuse_while_published(config, root)
    removed = removed_of(configuration, name, kubeconfig)
    if as_json:
        print_json({"node": name, "removed": removed})
    else:
        print("\n".join(f"removed    {one}" for one in removed) or "nothing to do")


@app.command("check-networks")
def check_networks(
    kubeconfig: Kubeconfig = None, config: Config = DEFAULT, root: Root = None, as_json: Json = False
) -> None:
    """List the networks of the cluster that this node refuses, because they name a path that it does not allow.

    `paths` of `[networks]` says what NetworkAttachmentDefinitions and objects `Network` may name. Run this before an
    upgrade, or before you change `paths`. It changes nothing, asks no daemon, and fails if there is such an object.

    Example: `nodeplug cluster check-networks --kubeconfig /etc/kubernetes/admin.conf`
    """
    from dataclasses import asdict

    from nodeplug.config import NetworksSection, load

    configuration = load(config, root)
    section = configuration.networks or NetworksSection()
    named = kubeconfig or section.kubeconfig or configuration.kubeconfig
    found = refused_networks(named, section.paths)
    if as_json:
        print_json({"paths": list(section.paths), "refused": [asdict(one) for one in found]})
    else:
        print("\n".join(f"{one.kind} {one.name}: {one.reason}" for one in found) or "no network is refused")
    if found:
        raise typer.Exit(1)


def refused_networks(kubeconfig: Path | None, paths: "Collection[str]") -> "Sequence[RefusedNetwork]":
    """Return the networks of the cluster that name another path.

    Raises:
        PluginError: the API server refused, or cannot be asked.
    """
    from nodeplug.networks.refused import refused

    return _asked(kubeconfig, lambda client: refused(client, paths))


def _asked(kubeconfig: Path | None, ask: "Callable[[Client], Coroutine[Any, Any, _T]]") -> "_T":
    """Ask the API server, and return its answer."""
    import asyncio

    from nodeplug.kubeapi.client import Client
    from nodeplug.kubeapi.credentials import Credentials, find

    async def asking() -> "_T":
        async with Client(Credentials(find(kubeconfig))) as client:
            return await ask(client)

    return asyncio.run(asking())


def refuse_while_published(config: Path, root: Path | None) -> None:
    """Raise InUse if the daemon of this node would write everything again."""
    from nodeplug.commands import ask_daemon

    try:
        answer = ask_daemon(config, root, "status", warn=False)
    except NotReady:
        return
    if answer.get("cluster") is not None:
        raise InUse(
            "the daemon publishes, and would write everything again: stop it, or take [cluster] out and restart it"
        )


def removed_of(configuration: "Configuration", node: str, kubeconfig: Path | None) -> list[str]:
    """Remove what was published about a node, and return what that was.

    Raises:
        PluginError: the API server refused, or cannot be asked.
    """
    from nodeplug.cluster.withdrawal import withdraw as withdraw_from

    section = configuration.cluster
    named = kubeconfig or (section.kubeconfig if section is not None else None) or configuration.kubeconfig
    return _asked(named, lambda client: withdraw_from(client, node))
