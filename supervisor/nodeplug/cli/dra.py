"""`nodeplug dra manifests`: what a cluster has to know of devices that the scheduler allocates.

Owns: its options and output, and which sections count.
Refuses: to change a cluster.
"""

from collections.abc import Collection
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import typer

from nodeplug.cli.cluster import Namespace
from nodeplug.cli.group import Subcommands
from nodeplug.commands import DEFAULT, Config, Json, Root, print_json
from nodeplug.contract.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from nodeplug.config import Reading
    from nodeplug.dra.manifests import Class

app = typer.Typer(cls=Subcommands, add_completion=False, rich_markup_mode="markdown", no_args_is_help=True)

Extended = Annotated[
    list[str] | None,
    typer.Option(
        "--extended-resource",
        metavar="NAME",
        help="A resource whose devices are all whole, or a pattern such as `nvidia.com/mig-*`: pods may ask for them "
        "by `limits`, too; repeatable.",
        show_default="none",
    ),
]
Account = Annotated[
    str,
    typer.Option(
        "--service-account",
        metavar="NAME",
        help="Of these pods, if they have one already.",
        show_default="nodeplug-node, which is printed",
    ),
]
Group = Annotated[
    str,
    typer.Option(
        "--users-of",
        metavar="GROUP",
        help="The daemons run in no pods: they are users of this group, `GROUP:NODE` on each node.",
        show_default="they run in pods",
    ),
]


@app.callback()
def dra() -> None:
    """Tell a cluster of the devices that sections with `serve = "dra"` have.

    Example: `nodeplug dra manifests | kubectl apply -f -`
    """


@app.command()
def manifests(
    extended_resource: Extended = None,
    namespace: Namespace = "kube-system",
    service_account: Account = "",
    users_of: Group = "",
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Print what a cluster needs for sections with `serve = "dra"`, to apply once.

    That is a DeviceClass for each resource; the rights of the daemons; and a policy that leaves each node its own
    ResourceSlices. Sections that are for other nodes count. Kubernetes has to be 1.34 or newer. Kubelet's own
    credentials need none of these rights, and are confined by Kubernetes itself. Nothing is applied, and no daemon is
    asked.

    Example: `nodeplug dra manifests --namespace nodeplug | kubectl apply -f -`
    """
    from nodeplug.config import read
    from nodeplug.dra.manifests import manifests as manifests_of
    from nodeplug.kubeapi.printed import as_list, as_yaml
    from nodeplug.kubeapi.rights import ACCOUNT

    if service_account and users_of:
        raise InvalidRequest("--service-account is for daemons in pods, and --users-of for those in none; give one")
    classes = classes_in(read(config, root), extended_resource or ())
    made = manifests_of(classes, namespace, account=service_account or ACCOUNT, group=users_of)
    if as_json:
        print_json(as_list(made))
    else:
        print(as_yaml(made), end="")


def classes_in(reading: "Reading", extended: Collection[str] = ()) -> "list[Class]":
    """Load the plugins of sections with `serve = "dra"`, and return a class for each resource.

    Args:
        reading: the configuration; sections for other nodes count.
        extended: patterns of resources that pods may ask for by `limits`.

    Raises:
        ConfigError: a plugin cannot be loaded.
        PluginError: there is no such section, or no resource for a pattern.
    """
    from nodeplug.contract.values import ResourceName
    from nodeplug.dra.manifests import Class

    found: dict[str, list[str]] = {}
    for name, section in reading.configuration.plugins.items():
        if section.serve == "dra" and (section.enabled or name in reading.elsewhere):
            for resource in _resources(reading, name):
                found.setdefault(resource, []).append(name)
    if not found:
        raise NotFound(f'{reading.places.main.path} enables no plugin with devices whose section says serve = "dra"')
    for pattern in extended:
        if not any(fnmatchcase(one, pattern) for one in found):
            raise InvalidRequest(f"no section serves {pattern!r} by claims; these are: {', '.join(sorted(found))}")
    return [
        Class(ResourceName(one), tuple(sorted(found[one])), any(fnmatchcase(one, pattern) for pattern in extended))
        for one in sorted(found)
    ]


def _resources(reading: "Reading", name: str) -> list[str]:
    """Load the plugin of one section alone, since sections for different nodes may claim the same, and return these."""
    from nodeplug.cli.effective import examine
    from nodeplug.config import ConfigError
    from nodeplug.contract.values import DeviceClaim

    configuration = reading.configuration
    alone = {name: configuration.plugins[name].model_copy(update={"enabled": True})}
    examined = examine(
        replace(reading, configuration=configuration.model_copy(update={"plugins": alone}), elsewhere={})
    )
    if examined.problems:
        raise ConfigError(examined.problems)
    return [claim.name for claim, _ in examined.registry.claimed(DeviceClaim) if not claim.counted]
