"""For authors of plugins: `demo`, `new`, `try`, `verify`.

Owns: their options and exit statuses.
Refuses: to do the work itself, or to judge a plugin.
"""

from pathlib import Path
from typing import Annotated

import typer

from nodeplug.cli.group import say
from nodeplug.commands import DEFAULT, Config, Json, Root, SecretsFile

Network = Annotated[
    Path | None, typer.Option("--network", "--conflist", metavar="FILE", help="The network of a CNI plugin.")
]


def demo() -> None:
    """Play a pod's whole life against a daemon of its own, in a temporary folder.

    Example: `nodeplug demo`
    """
    from nodeplug.cli.demo import run

    raise typer.Exit(run())


def new(
    style: Annotated[
        str,
        typer.Argument(
            metavar="device|cni|volume|extender",
            help="A device plugin, a CNI plugin, a volume driver or a scheduler extender.",
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is about, such as `usb-camera`.")],
    directory: Annotated[
        Path | None,
        typer.Option("--directory", metavar="DIR", help="The folder to create; by default `nodeplug-NAME` here."),
    ] = None,
) -> None:
    """Write a plugin of your own: a package with plugin, tests and configuration that works at once.

    The tutorials go on from there: docs/tutorial-device.md, docs/tutorial-cni.md, docs/tutorial-volume.md and
    docs/tutorial-extender.md.

    Example: `nodeplug new device usb-camera`
    """
    from nodeplug.cli.scaffold import Names, next_steps, write

    names = Names.of(name)
    folder = directory or Path(names.distribution)
    for path in write(style, names, folder):
        print(folder / path)
    print(next_steps(names, folder))


def try_(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="Files as in plugins.d; the plugins of the first are tried."),
    ],
    network: Network = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="An option of a volume; repeatable.")
    ] = None,
    secrets: SecretsFile = None,
    isolation: Annotated[
        str,
        typer.Option(
            "--isolation",
            metavar="WAY",
            help="How the daemon runs the plugin: thread, process (one of its own) or both; by default as its section "
            "says.",
            show_default=False,
        ),
    ] = "",
    serve: Annotated[
        str,
        typer.Option(
            "--serve",
            metavar="FRONT",
            help="How devices are served: device-plugin, dra (claims that a scheduler allocates) or both; by default "
            "as the section says.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Serve a plugin to kubelet and container runtime, acted out in a temporary folder, and show what they get.

    Nothing of this machine is touched. What the options leave out, the attribute `example` of the plugin's class says.

    Example: `nodeplug try fuse.toml`
    """
    from nodeplug.cli.trial import Trial, options_of

    raise typer.Exit(Trial(files, network, options_of(option or ()), secrets, isolation, serve).run())


def verify(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            help="A `[plugins.NAME]` table, an installed plugin, `module:Class`, or a file as in plugins.d.",
            show_default=False,
        ),
    ] = "",
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
    conflist: Network = None,
    options: Annotated[
        str, typer.Option("--options", metavar="JSON|FILE", help="The options of a volume.", show_default=False)
    ] = "",
    secrets: SecretsFile = None,
    beside: Annotated[
        list[str] | None, typer.Option("--beside", metavar="NAME", help="Also run this plugin; repeatable.")
    ] = None,
    isolation: Annotated[
        str,
        typer.Option(
            "--isolation",
            metavar="WAY",
            help="How the daemon runs the plugin: thread, process (one of its own) or both, one after the other.",
        ),
    ] = "both",
    rule: Annotated[
        list[str] | None, typer.Option("--rule", metavar="RULE", help="This rule alone; repeatable.")
    ] = None,
    list_rules: Annotated[bool, typer.Option("--list", help="Print every rule, and verify nothing.")] = False,
) -> None:
    """Hold a plugin to every rule that its callers rely on, and say what was expected and seen.

    The plugin runs in a daemon of its own, in a temporary folder. Its class says in the attribute `example` what is
    asked of it: `config`, `cni`, `volume_options` and more; the options below win over it. A rule that takes the
    daemon is judged twice: with the plugin in a thread, and in a process of its own. A rule that is broken is shown as
    FAILED, with what was expected, who demands it, what was seen, and what to do; one with `-` did not apply.

    The exit status is 0 when every rule that applies was kept, 1 when one is broken, 2 for wrong usage, and 3 when none
    is broken but those for networks and volumes could not be judged without root.

    Example: `nodeplug verify bridge`
    """
    from nodeplug.testing.conformance.command import MISUSED, Asked, Misuse, catalogue, verify

    if list_rules or not name:
        print(catalogue() if list_rules else "which plugin? `nodeplug verify --help` says how to name one")
        raise typer.Exit(0 if list_rules else MISUSED)
    try:
        asked = Asked(name, config, root, conflist, options, secrets, beside or (), isolation, rule or (), as_json)
        raise typer.Exit(verify(asked))
    except Misuse as error:
        say(f"error: {error}")
        raise typer.Exit(MISUSED) from None
