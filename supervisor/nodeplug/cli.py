"""The command line.

Owns: commands, options, help texts, exit statuses: 0 done, 1 an error told in a sentence on stderr, 2 wrong usage.
Refuses: to do anything itself. What a command needs is imported inside it, so that `--help` and `version` are quick.
"""

import logging
import os
import sys
import threading
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from nodeplug.commands import DEFAULT, GROUP, Config, Json, Root, SecretsFile, print_json, show, show_names_as_they_are
from nodeplug.errors import NotReady, PluginError


class _Commands(TyperGroup):
    """Adds the commands of plugins, and turns an error that is a sentence into that sentence and exit status 1."""

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        return [*own, *sorted({point.name for point in entry_points(group=GROUP)} - set(own))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is not None:  # of two commands with one name ours is meant, and nothing of plugins is looked for
            return own
        found = next(iter(entry_points(group=GROUP, name=cmd_name)), None)
        return None if found is None else _brought(found)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PluginError as error:
            for line in getattr(error, "problems", None) or [str(error)]:
                _say(f"error: {line}")
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="One daemon per Kubernetes node that hosts Python plugins: devices, CNI networks, FlexVolume drivers.",
)


def main() -> None:
    """Run the command line of this process."""
    show_names_as_they_are()
    app(prog_name="nodeplug")


def _brought(point: EntryPoint) -> Any:
    """Load a command that a plugin brings; one that cannot be loaded says so when it is called, not in every help."""
    try:
        return typer.main.get_command(point.load())
    except (Exception, SystemExit) as error:
        reason = f"the command {point.name!r} ({point.value}) cannot be loaded: {type(error).__name__}: {error}"
        broken = typer.Typer(add_completion=False)

        @broken.command(point.name, help=f"Unusable: {reason}")
        def refuse() -> None:
            raise PluginError(reason)

        return typer.main.get_command(broken)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


@app.callback()
def _begin() -> None:
    # Commands tell an error as their answer; only `serve` sets up a log, which would otherwise tell it twice.
    logging.getLogger("nodeplug").addHandler(logging.NullHandler())


@app.command()
def serve(config: Config = DEFAULT, root: Root = None) -> None:
    """Run the daemon in the foreground.

    SIGTERM ends it, SIGHUP reads the configuration again (it also does so by itself when a file changes).

    Example: `nodeplug serve --root /tmp/node --config ./nodeplug.toml`
    """
    # gRPC's C core writes to stderr past our log, in a form of its own, what our log says already.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from nodeplug.daemon import serve as run

    status = run(config, root)
    _leave_threads_behind(status)
    raise typer.Exit(status)


def _leave_threads_behind(status: int) -> None:
    """End the process here if a plugin left a thread running that the interpreter would wait for, for ever."""
    main = threading.main_thread()
    left = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not main]
    if left:
        logging.getLogger("nodeplug").warning("ending with threads that plugins left running: %s", ", ".join(left))
        sys.stdout.flush()
        os._exit(status)  # noqa: TID251 - sys.exit would join those threads


@app.command(name="check-config")
def check_config(config: Config = DEFAULT, root: Root = None, as_json: Json = False) -> None:
    """Print the effective configuration, defaults included, or every mistake with its file and key.

    Nothing is started or written. The exit status is 1 when there is a mistake.

    Example: `nodeplug check-config --config ./nodeplug.toml`
    """
    from nodeplug.config import load
    from nodeplug.effective import effective, refusals
    from nodeplug.install.deployment import inspect

    configuration = load(config, root)
    problems = refusals(inspect(configuration), config)
    document = effective(configuration)
    if as_json:
        print_json({"configuration": document, "problems": problems})
    elif not problems:
        from nodeplug.tables import toml

        print(toml(document), end="")
    for problem in problems:
        _say(f"error: {problem}")
    raise typer.Exit(1 if problems else 0)


@app.command()
def plugins(config: Config = DEFAULT, root: Root = None, as_json: Json = False) -> None:
    """List the plugins: what they claim, how they are, and why one is refused.

    Asks the running daemon; without one, says what the configuration would load.

    Example: `nodeplug plugins --json | jq -r '.plugins[].claims[]'`
    """
    from nodeplug import tables
    from nodeplug.config import load
    from nodeplug.control import ask
    from nodeplug.effective import rows_of
    from nodeplug.install.deployment import inspect
    from nodeplug.registry import installed

    configuration = load(config, root)
    source = "daemon"
    try:
        rows = ask(configuration.supervisor.paths.exec_socket, "status")["plugins"]
    except NotReady as error:
        source = "configuration"
        _say(f"{error}\nThis is what the configuration would load:")
        rows = rows_of(inspect(configuration))
    names = sorted(installed().keys() - {row["uses"] for row in rows})
    if as_json:
        print_json({"source": source, "plugins": rows, "available": names})
        return
    show(tables.plugins(rows))
    show(tables.available(names))


@app.command()
def status(config: Config = DEFAULT, root: Root = None, as_json: Json = False) -> None:
    """Show what the running daemon does: plugins, devices, networks, volumes, calls.

    The exit status is 1 when no daemon runs.

    Example: `nodeplug status --json | jq '.calls[] | select(.overdue)'`
    """
    from nodeplug import tables
    from nodeplug.config import load
    from nodeplug.control import ask

    answer = ask(load(config, root).supervisor.paths.exec_socket, "status")
    if as_json:
        print_json(answer)
    else:
        show(tables.status(answer))


@app.command()
def inspect(
    plugin: Annotated[str, typer.Argument(metavar="NAME", help="A section's name, or the plugin that sections use.")],
    config: Config = DEFAULT,
    root: Root = None,
) -> None:
    """Print what a plugin tells about itself, as JSON by section name.

    Plugins that have more to show bring a command of their own.

    Example: `nodeplug inspect gpu | jq '.[].cards'`
    """
    from nodeplug.commands import inspect as ask_plugin

    print_json(ask_plugin(plugin, config, root))


@app.command()
def install(
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
    conflist: Annotated[
        list[Path] | None,
        typer.Option("--conflist", metavar="FILE", help="Also install this network configuration; repeatable."),
    ] = None,
    native: Annotated[
        bool | None,
        typer.Option(
            "--native/--script",
            help="Compile the entrypoints with this host's C compiler ($CC or cc), or never. "
            "Without either: `native_entrypoints`, which compiles where there is a compiler.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Install the entrypoints of every enabled plugin where the runtime and kubelet look for them.

    Names that belong to somebody else are never touched. Repeating it changes nothing; what an earlier installation
    made and no plugin claims any more is removed.

    Example: `nodeplug install --conflist configs/cni/10-nodeplug.conflist`
    """
    from nodeplug.config import ConfigError, load
    from nodeplug.effective import refusals
    from nodeplug.install.deployment import deploy, inspect

    configuration = load(config, root)
    inspected = inspect(configuration)
    problems = refusals(inspected, config)
    if problems:
        end = "nothing was installed: a plugin that cannot be loaded would lose its entrypoints"
        raise ConfigError([*problems, end])
    conflists = {path.name: _read(path) for path in conflist or ()}
    supervisor = configuration.supervisor
    wanted = supervisor.native_entrypoints if native is None else native
    done = deploy(inspected.registry, supervisor.paths, native=wanted, conflists=conflists)
    if done.entrypoints.warning:
        _say(f"warning: {done.entrypoints.reason}; the Python scripts are installed instead")
    _show_report(done.as_dict(), as_json=as_json)


@app.command()
def uninstall(config: Config = DEFAULT, root: Root = None, as_json: Json = False) -> None:
    """Remove what `install` installed, and nothing else.

    A volume driver whose volumes are still mounted is kept, because kubelet unmounts through it: run it again later.

    Example: `nodeplug uninstall --json`
    """
    from nodeplug.config import load
    from nodeplug.install.deployment import withdraw

    _show_report(withdraw(load(config, root).supervisor.paths).as_dict(), as_json=as_json)


@app.command()
def demo() -> None:
    """Play a pod's whole life against a daemon of its own, in a temporary folder.

    Example: `nodeplug demo`
    """
    from nodeplug.demo import run

    raise typer.Exit(run())


@app.command()
def new(
    style: Annotated[
        str, typer.Argument(metavar="device|cni|volume", help="A device plugin, a CNI plugin or a volume driver.")
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is about, such as `usb-camera`.")],
    directory: Annotated[
        Path | None,
        typer.Option("--directory", metavar="DIR", help="The folder to make; `nodeplug-NAME` here by default."),
    ] = None,
) -> None:
    """Write a plugin of your own: a package with plugin, tests and configuration that works at once.

    The tutorials go on from there: docs/tutorial-device.md, docs/tutorial-cni.md and docs/tutorial-volume.md.

    Example: `nodeplug new device usb-camera`
    """
    from nodeplug.scaffold import Names, next_steps, write

    names = Names.of(name)
    folder = directory or Path(names.distribution)
    for path in write(style, names, folder):
        print(folder / path)
    print(next_steps(names, folder))


@app.command(name="try")
def try_(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Files as in plugins.d; the plugins of the first are tried."),
    ],
    network: Annotated[
        Path | None, typer.Option("--network", metavar="CONFLIST", help="The network of a CNI plugin.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="An option of a volume; repeatable.")
    ] = None,
    secrets: SecretsFile = None,
) -> None:
    """Serve a plugin to kubelet and container runtime, acted out in a temporary folder, and show what they get.

    Nothing of this machine is touched. Without options, the plugin's own `example` says what is asked of it.

    Example: `nodeplug try fuse.toml`
    """
    from nodeplug.trial import Trial, options_of

    raise typer.Exit(Trial(files, network, options_of(option or ()), secrets).run())


@app.command()
def verify(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME|FILE", help="A section, a plugin, `module:Class`, a drop-in.", show_default=False),
    ] = "",
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
    conflist: Annotated[Path | None, typer.Option("--conflist", metavar="FILE", help="A CNI plugin's network.")] = None,
    options: Annotated[
        str, typer.Option("--options", metavar="JSON|FILE", help="The options of a volume.", show_default=False)
    ] = "",
    secrets: SecretsFile = None,
    beside: Annotated[
        list[str] | None, typer.Option("--beside", metavar="NAME", help="Also run this plugin; repeatable.")
    ] = None,
    rule: Annotated[
        list[str] | None, typer.Option("--rule", metavar="RULE", help="This rule alone; repeatable.")
    ] = None,
    list_rules: Annotated[bool, typer.Option("--list", help="Print every rule, and verify nothing.")] = False,
) -> None:
    """Hold a plugin to every rule that its callers rely on, and say what was expected and seen.

    The plugin runs in a daemon of its own, in a temporary folder. Its class says in the attribute `example` what is
    asked of it: `config`, `cni`, `volume_options` and more; options come before it. A rule that is broken is shown as
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
        asked = Asked(name, config, root, conflist, options, secrets, beside or (), rule or (), as_json)
        raise typer.Exit(verify(asked))
    except Misuse as error:
        _say(f"error: {error}")
        raise typer.Exit(MISUSED) from None


@app.command()
def version() -> None:
    """Print the version.

    Example: `nodeplug version`
    """
    from importlib.metadata import version as version_of

    print(f"nodeplug {version_of('nodeplug')}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PluginError(f"cannot read {path}: {error.strerror}") from error


def _show_report(report: Mapping[str, Any], *, as_json: bool) -> None:
    from nodeplug import tables

    if as_json:
        print_json(report)
    else:
        show(tables.report(report))
