"""The unit that an installation writes: whose it is, and what it starts."""

from pathlib import Path

import pytest

from nodeplug import InvalidRequest, NotFound
from nodeplug.install import systemd

PROGRAM = Path("/srv/venv/bin/nodeplug")


def started(unit: str) -> list[str]:
    return [line.partition("=")[2] for line in unit.splitlines() if line.startswith("Exec")]


def test_it_starts_the_daemon_of_this_installation() -> None:
    commands = started(systemd.render(PROGRAM, None))
    assert f"{PROGRAM} serve" in commands
    assert [one for one in commands if not one.startswith(f"{PROGRAM} ") or "--config" in one] == []


def test_each_command_has_a_configuration_file_that_is_not_the_usual_one() -> None:
    commands = started(systemd.render(PROGRAM, Path("/srv/nodeplug.toml")))
    assert f"{PROGRAM} serve --config /srv/nodeplug.toml" in commands
    assert [one for one in commands if not one.endswith(" --config /srv/nodeplug.toml")] == []


@pytest.mark.parametrize("word", ["/srv/a b/nodeplug", "/srv/%n/nodeplug", "/srv/$HOME/nodeplug", "/srv/a\nb"])
def test_a_path_that_systemd_would_read_otherwise_is_refused(word: str) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot stand in nodeplug\.service"):
        systemd.render(Path(word), None)
    with pytest.raises(InvalidRequest, match=r"cannot stand in nodeplug\.service"):
        systemd.render(PROGRAM, Path(word))


def test_what_was_written_is_ours_until_somebody_changes_it(tmp_path: Path) -> None:
    unit = tmp_path / systemd.UNIT
    unit.write_text(systemd.render(PROGRAM, None))
    assert systemd._is_ours(unit)
    unit.write_text(unit.read_text().replace("[Service]", "[Service]\nNice=5"))
    assert not systemd._is_ours(unit)


def test_a_copy_of_the_unit_of_the_sources_is_ours(tmp_path: Path) -> None:
    unit = tmp_path / systemd.UNIT
    unit.write_text(systemd._source().read_text())
    assert systemd._is_ours(unit)


def test_an_installation_without_the_unit_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "find_scripts", lambda: tmp_path / "scripts")
    with pytest.raises(NotFound, match=rf"is in none of {tmp_path}/systemd, {tmp_path}/deploy; reinstall"):
        systemd.render(PROGRAM, None)
