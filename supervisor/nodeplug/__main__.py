"""`nodeplug`, also as `python -m nodeplug`: the command line.

Owns: the sentence for an environment that can hold plugins but has not what the daemon and the commands need, and the
way to the daemon past the command line.
Refuses: the commands themselves (`nodeplug.cli`), and the daemon's process (`nodeplug.serving`).
"""

import sys
from typing import Any, Final

from nodeplug.contract.errors import PluginError
from nodeplug.serving import plain_words, serve

OF_THE_DAEMON: Final = frozenset(
    {"asyncinotify", "google", "grpc", "h11", "prometheus_client", "pynvml", "pyroute2", "rich", "tomli_w", "typer"}
)
"""What the extra `daemon` of the distribution brings, by the names that are imported."""


def main() -> None:
    """Run the command line."""
    try:
        words = plain_words(sys.argv[1:])
        if words is not None:
            raise SystemExit(_serve(words))
        from nodeplug.cli import main as run

        run()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in OF_THE_DAEMON:
            raise
        advice = f"{sys.executable} -m pip install 'nodeplug[daemon]'"
        print(f"error: this Python has nodeplug for plugins alone ({missing} is missing): {advice}", file=sys.stderr)
        raise SystemExit(1) from None


def _serve(words: dict[str, Any]) -> int:
    try:
        return serve(**words)
    except PluginError as error:
        from nodeplug.cli.group import explain

        explain(error)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    main()
