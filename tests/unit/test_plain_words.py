"""The way to the daemon past the command line: words that are understood mean what they mean there."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nodeplug import serving
from nodeplug.cli import app

PLAIN = [
    ["serve"],
    ["serve", "--config", "/etc/a.toml"],
    ["serve", "--config=/etc/a=b.toml", "--root", "relative/folder"],
    ["serve", "--root=/r", "--succeed", "7", "--config", "a.toml"],
    ["serve", "--config", "first.toml", "--config", "second.toml"],
    ["serve", "--take-over"],
    ["serve", "--root", "/r", "--take-over", "--config=a.toml"],
]
FOR_THE_COMMAND_LINE = [
    [],
    ["status"],
    ["--help"],
    ["serve", "--help"],
    ["serve", "--config"],
    ["serve", "--config="],
    ["serve", "--config", "--root"],
    ["serve", "--config", "--take-over"],
    ["serve", "--config", "--take-over", "a.toml"],
    ["serve", "--take-over=yes"],
    ["serve", "--succeed", "seven"],
    ["serve", "--unknown", "x"],
    ["serve", "a.toml"],
    ["serve", "--", "--root"],
    ["--version", "serve"],
]


@pytest.mark.parametrize("words", PLAIN, ids=" ".join)
def test_plain_words_mean_what_the_command_line_makes_of_them(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[dict[str, Any]] = []

    def serve(
        config: Path = serving.DEFAULT, root: Path | None = None, succeed: int | None = None, *, take_over: bool = False
    ) -> int:
        called.append({"config": config, "root": root, "succeed": succeed, "take_over": take_over})
        return 0

    monkeypatch.setattr(serving, "serve", serve)
    assert CliRunner().invoke(app, words).exit_code == 0
    plain = serving.plain_words(words)
    assert plain is not None
    serve(**plain)
    assert called[0] == called[1]


@pytest.mark.parametrize("words", FOR_THE_COMMAND_LINE, ids=" ".join)
def test_what_is_not_plain_is_left_to_the_command_line(words: list[str]) -> None:
    assert serving.plain_words(words) is None
