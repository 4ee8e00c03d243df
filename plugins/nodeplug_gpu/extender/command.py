"""`nodeplug extender`: a daemon that is nothing but the scheduler extender that knows the cards.

Owns: its options, and the configuration that they make.
Refuses: to serve: it executes `nodeplug serve`. What it needs is imported when it is needed, since every
`nodeplug --help` imports this module.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from nodeplug import InvalidRequest, PluginError

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
_FOLDER: Final = Path("/run/nodeplug-extender")
_FILE: Final = "nodeplug.toml"
_HEAD: Final = "# Written by `nodeplug extender` at each start."
_OWN: Final[Mapping[str, Any]] = {"drop_in_dir": "", "cgroups": False, "csi": False, "install": False}
"""Of `[supervisor]`: no part of the node is this daemon's."""


def _file(text: str) -> Any:
    return typer.Option(metavar="FILE", help=text, show_default=False)


@app.command()
def extender(
    resources: Annotated[
        list[str] | None,
        typer.Option(
            "--resource",
            metavar="NAME",
            help="Whose units are placed, served at `/` and what stands behind its slash; may be given several times.",
            show_default="aliyun.com/gpu-mem",
        ),
    ] = None,
    score: Annotated[
        str, typer.Option(metavar="POLICY", help="`binpack` likes cards that are full, `spread` those that are empty.")
    ] = "binpack",
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where kube-scheduler asks; another host than this needs TLS.")
    ] = "127.0.0.1:9810",
    probes: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where /healthz, /readyz and /metrics are.", show_default=False)
    ] = "",
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="How to reach the API server.",
            show_default="$KUBECONFIG, or the ServiceAccount of the pod",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, _file("The certificate for `enableHTTPS: true`, read again when it changes.")
    ] = None,
    tls_key: Annotated[Path | None, _file("Its private key.")] = None,
    client_ca: Annotated[Path | None, _file("Who has to have signed the scheduler's certificate.")] = None,
    folder: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where its configuration, socket and notes are; nothing else is written."),
    ] = _FOLDER,
    shown: Annotated[bool, typer.Option("--print", help="Print the configuration, and serve nothing.")] = False,
) -> None:
    """Serve kube-scheduler as the extender that knows how much memory each card has free. In the foreground.

    Run one beside every kube-scheduler; nothing is elected and nothing stored, and root is not needed. On the nodes a
    daemon with the plugin `gpu` and a section `[cluster]` says what is free. What kube-scheduler's configuration has to
    say, and which rights are needed: docs/scheduler.md.

    Example: `nodeplug extender --kubeconfig /etc/kubernetes/extender.conf --probes 127.0.0.1:9811`

    Example: `nodeplug status --config /run/nodeplug-extender/nodeplug.toml --root /run/nodeplug-extender`
    """
    keys = {
        "listen": listen,
        "follow": True,
        "kubeconfig": kubeconfig,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "client_ca": client_ca,
    }
    text = _written(keys, probes, _sections(resources or ["aliyun.com/gpu-mem"], score))
    if shown:
        print(text, end="")  # noqa: T201 - it is a file, as it is
        return
    place = _write(folder, text)
    command = [sys.executable, "-P", "-m", "nodeplug", "serve", "--config", str(place), "--root", str(folder)]
    os.execv(sys.executable, command)  # noqa: S606 - this very Python


def _sections(resources: Sequence[str], score: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Name a section for each resource; raise InvalidRequest if two would be served at the same path."""
    names: dict[str, str] = {}
    for resource in dict.fromkeys(resources):
        name = resource.rpartition("/")[2]
        if name in names:
            raise InvalidRequest(
                f"{names[name]} and {resource} would both be served at /{name}; run an extender for each, with --listen"
            )
        names[name] = resource
        yield name, {"extender": name, "resource": resource, "score": score}


def _written(extender: Mapping[str, Any], probes: str, sections: Iterator[tuple[str, Mapping[str, Any]]]) -> str:
    tables: dict[str, Mapping[str, Any]] = {
        "supervisor": {**_OWN, "listen": probes},
        "extender": {key: value for key, value in extender.items() if value is not None},
    }
    for name, config in sections:
        place = f"plugins.{json.dumps(name)}"
        tables |= {place: {"uses": "gpu-extender"}, f"{place}.config": config}
    body = "\n".join(f"[{name}]\n{_toml(keys)}" for name, keys in tables.items())
    return f"{_HEAD}\nversion = 1\n{body}"


def _toml(keys: Mapping[str, Any]) -> str:
    """Write keys of a table; texts of JSON are texts of TOML."""
    written = {key: str(value.absolute()) if isinstance(value, Path) else value for key, value in keys.items()}
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in written.items())


def _write(folder: Path, text: str) -> Path:
    place = folder / _FILE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        half = place.with_suffix(".new")
        half.write_text(text, encoding="utf-8")
        half.replace(place)
    except OSError as error:
        raise PluginError(
            f"cannot write {place}: {error.strerror}; --folder names a folder that may be written"
        ) from None
    return place
