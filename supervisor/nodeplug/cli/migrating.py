"""`nodeplug migrate flex-to-csi`: from FlexVolume to CSI, and back.

Owns: its options, its output, and which of plan, apply and undo is meant.
Refuses: what is done to a volume (`nodeplug.migration`).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nodeplug.cli.csi import Kubeconfig
from nodeplug.cli.group import Subcommands, read_file, say
from nodeplug.commands import DEFAULT, Config, Json, Root, print_json, show
from nodeplug.contract.errors import PluginError

if TYPE_CHECKING:
    from nodeplug.kubeapi.client import Client
    from nodeplug.migration.inline import Target
    from nodeplug.migration.plan import Planned, Wanted
    from nodeplug.migration.records import Saved

app = typer.Typer(cls=Subcommands, add_completion=False, rich_markup_mode="markdown", no_args_is_help=True)


Apply = Annotated[bool, typer.Option("--apply", help="Do it; otherwise it is told what would be done.")]
Undo = Annotated[
    Path | None,
    typer.Option("--undo", metavar="PATH", help="Undo what is recorded there: a volume's folder, or all."),
]
Manifests = Annotated[
    list[Path] | None,
    typer.Option("--manifests", metavar="FILE", help="Rewrite inline FlexVolumes in this file; repeatable."),
]
Claims = Annotated[
    list[str] | None,
    typer.Option("--claim", metavar="NAMESPACE/NAME", help="Only this claim; repeatable.", show_default="all"),
]
FlexDriver = Annotated[
    str, typer.Option("--driver", metavar="VENDOR/DRIVER", help="Only this driver.", show_default="all")
]
Node = Annotated[
    str, typer.Option("--node", metavar="NAME", help="Where volumes are that name no node.", show_default="not said")
]
State = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="Where each step is recorded.", show_default="migration in state_dir"),
]


@app.callback()
def migrate() -> None:
    """Move volumes from one interface to another, where they are.

    Example: `nodeplug migrate flex-to-csi`
    """


@app.command()
def flex_to_csi(
    apply: Apply = False,
    undo: Undo = None,
    manifests: Manifests = None,
    claim: Claims = None,
    driver: FlexDriver = "",
    node: Node = "",
    state: State = None,
    kubeconfig: Kubeconfig = None,
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Replace PersistentVolumes of FlexVolume by those of CSI; the data stays where it is, the claim is Bound again.

    Without `--apply` the plan is told and nothing is changed. A volume that a pod uses is refused. While a volume is
    exchanged, its claim is Lost for a second or two, and an event says `ClaimLost`. Each step is recorded: what was
    interrupted goes on with `--apply`, and `--undo` brings FlexVolume back. Needs the daemon, whose plugins say what
    their options mean. The exit status is 1 when a volume could not be migrated.

    Example: `nodeplug migrate flex-to-csi --claim default/data --node node-1 --apply`
    """
    from nodeplug.config import read

    if bool(undo) + bool(manifests) > 1 or (undo and apply):
        raise typer.BadParameter("--apply, --undo and --manifests: choose one, or --manifests with --apply")
    reading = read(config, root)
    if manifests:
        raise typer.Exit(_rewrite(manifests, _targets(config, root), apply=apply, as_json=as_json))
    from nodeplug.migration.plan import Wanted

    wanted = Wanted(driver, tuple(claim or ()), node)
    place = state or reading.configuration.supervisor.paths.state / "migration"
    work = _Work(config, root, kubeconfig, place, as_json)
    raise typer.Exit(work.undo(undo) if undo else work.migrate(wanted, apply=apply))


class _Work:
    """One run of the command about volumes; methods return the exit status."""

    def __init__(self, config: Path, root: Path | None, kubeconfig: Path | None, state: Path, as_json: bool) -> None:
        from nodeplug.kubeapi.credentials import find

        self._config, self._root, self._state, self._as_json = config, root, state, as_json
        self._access = find(kubeconfig)

    def migrate(self, wanted: "Wanted", *, apply: bool) -> int:
        import asyncio

        return asyncio.run(self._migrate(wanted, apply=apply))

    def undo(self, path: Path) -> int:
        import asyncio

        from nodeplug.migration.records import all_below

        return asyncio.run(self._undo(all_below(path)))

    def _client(self) -> "Client":
        from nodeplug.kubeapi.client import Client
        from nodeplug.kubeapi.credentials import Credentials

        return Client(Credentials(self._access))

    async def _migrate(self, wanted: "Wanted", *, apply: bool) -> int:
        from nodeplug.migration.plan import plan

        async with self._client() as client:
            unfinished = self._begun()
            begun = [one for one in unfinished if wanted.means(one.before)]
            rest = wanted.without(one.before for one in begun)
            names = {one.name for one in begun}
            half = [one.after for one in unfinished]
            found = await plan(client, rest, self._identify, half) if rest is not None else []
            planned = [one for one in found if one.before["metadata"]["name"] not in names]
            if apply:
                rows = [await self._exchange(client, one, back=False) for one in begun]
                rows += [await self._apply(client, one) for one in planned]
            else:
                rows = [_row(one, "begun") for one in begun]
                rows += [{**one.as_dict(), "outcome": "refused" if one.problem else "planned"} for one in planned]
        self._show(rows, "Nothing is to be migrated: no PersistentVolume is a FlexVolume of a plugin here.")
        return int(any(row["problem"] for row in rows))

    def _begun(self) -> "list[Saved]":
        """Return what was begun and not ended."""
        from nodeplug.migration.records import DONE, FIRST, recorded

        return [one for one in recorded(self._state) if one.did(FIRST) and not one.did(DONE)]

    def _identify(self, driver: str, options: Mapping[str, str]) -> tuple[str, str]:
        from nodeplug.commands import ask_daemon

        answer = ask_daemon(self._config, self._root, "volume-id", driver, json.dumps(options), warn=False)
        return str(answer["driver"]), str(answer["volume_handle"])

    async def _apply(self, client: "Client", planned: "Planned") -> dict[str, Any]:
        from nodeplug.migration.records import save

        if planned.problem:
            return {**planned.as_dict(), "outcome": "refused"}
        try:
            saved = save(self._state, planned.before, planned.after, planned.claim)
        except PluginError as error:
            return {**planned.as_dict(), "outcome": "refused", "problem": str(error)}
        return await self._exchange(client, saved, back=False)

    async def _exchange(self, client: "Client", saved: "Saved", *, back: bool) -> dict[str, Any]:
        from nodeplug.migration.exchange import Exchange

        outcome, problem = "", ""
        try:
            async for step in Exchange(client, saved, back).steps():
                outcome = step
                if not self._as_json:
                    say(f"{saved.name}: {step}")
        except PluginError as error:
            problem = str(error)
        return _row(
            saved, ("undone" if back else "migrated") if not problem else f"begun: {outcome or 'saved'}", problem
        )

    async def _undo(self, records: "list[Saved]") -> int:
        from nodeplug.migration.records import FIRST

        rows = []
        async with self._client() as client:
            for one in records:
                if not one.did(FIRST):
                    rows.append(_row(one, "never begun"))
                    continue
                row = await self._exchange(client, one, back=True)
                if not row["problem"]:
                    row["record"] = str(one.put_away())
                rows.append(row)
        self._show(rows, "")
        return int(any(row["problem"] for row in rows))

    def _show(self, rows: list[dict[str, Any]], otherwise: str) -> None:
        from nodeplug.cli import tables

        if self._as_json:
            print_json({"volumes": rows})
        elif rows:
            show(tables.migration(rows))
        else:
            print(otherwise)


def _row(saved: "Saved", outcome: str, problem: str = "") -> dict[str, Any]:
    from nodeplug.migration.plan import Planned

    described = Planned(saved.before, saved.after, saved.claim, problem).as_dict()
    return {**described, "outcome": outcome, "record": str(saved.folder)}


def _targets(config: Path, root: Path | None) -> "dict[str, Target]":
    from nodeplug.cli.csi import drivers_in
    from nodeplug.config import read
    from nodeplug.migration.inline import Target

    return {one.claim.name: Target(one.name, one.claim.inline) for one in drivers_in(read(config, root))}


def _rewrite(files: list[Path], targets: "Mapping[str, Target]", *, apply: bool, as_json: bool) -> int:
    """Rewrite manifests; without `apply` show what would change."""
    import difflib

    from nodeplug.contract.journal import write_durably
    from nodeplug.migration.inline import rewrite

    rows: list[dict[str, Any]] = []
    for file in files:
        try:
            before = read_file(file).decode()
            made = rewrite(before, targets)
        except (PluginError, UnicodeDecodeError) as error:
            rows.append({"file": str(file), "changed": 0, "left": [str(error)]})
            continue
        rows.append({"file": str(file), "changed": made.changed, "left": list(made.left)})
        lines = before.splitlines(keepends=True), made.text.splitlines(keepends=True)
        if not as_json:
            print("".join(difflib.unified_diff(*lines, str(file), f"{file} over CSI")), end="")
        if apply and made.changed:
            mode = file.stat().st_mode
            write_durably(file, made.text.encode())
            file.chmod(mode)
    for row in rows:
        for reason in row["left"]:
            say(f"{row['file']}: {reason}")
    if as_json:
        print_json({"files": rows})
    return int(any(row["left"] for row in rows))
