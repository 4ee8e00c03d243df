from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeplug.config import ConfigError, load
from nodeplug.fields import parse_duration, parse_quantity, write_duration, write_quantity


def write(folder: Path, text: str, **drop_ins: str) -> Path:
    (folder / "plugins.d").mkdir()
    for name, content in drop_ins.items():
        (folder / "plugins.d" / f"{name}.toml").write_text(content)
    path = folder / "nodeplug.toml"
    path.write_text(text)
    return path


def problems(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path)
    return "\n".join(caught.value.problems)


def test_version_alone_is_a_whole_configuration(tmp_path: Path) -> None:
    configuration = load(write(tmp_path, "version = 1"))
    assert configuration.plugins == {}
    assert configuration.supervisor.exec_socket == Path("/run/nodeplug/exec.sock")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert f"{tmp_path / 'no.toml'}: the file does not exist" in problems(tmp_path / "no.toml")


def test_a_file_that_is_not_toml_says_where(tmp_path: Path) -> None:
    assert "is not TOML" in problems(write(tmp_path, "version = = 1"))


def test_an_unknown_key_is_named_with_the_allowed_ones(tmp_path: Path) -> None:
    text = problems(write(tmp_path, "version = 1\n[supervisor]\nexec_sock = '/x'"))
    assert (
        f'{tmp_path / "nodeplug.toml"}:3: supervisor.exec_sock: unknown key; did you mean "exec_socket"? allowed: root'
        in text
    )


def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    assert "version: must be 1, not 2" in problems(write(tmp_path, "version = 2"))


def test_a_file_without_a_version_is_told_what_it_may_be(tmp_path: Path) -> None:
    text = problems(write(tmp_path, "[plugins.tmpfs]"))
    assert "version: is missing; the main file begins with `version = 1`; a drop-in is no main file" in text


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    text = problems(write(tmp_path, "version = 1\n[supervisor]\ncni_concurrency = 0\nlisten = 5"))
    assert "supervisor.cni_concurrency" in text
    assert "supervisor.listen" in text


def test_a_drop_in_adds_a_plugin(tmp_path: Path) -> None:
    configuration = load(write(tmp_path, "version = 1", net="[plugins.bridge]\nconfig = {a = 1}"))
    assert configuration.plugins["bridge"].config == {"a": 1}


def test_an_empty_drop_in_folder_switches_drop_ins_off(tmp_path: Path) -> None:
    path = write(tmp_path, "version = 1\n[supervisor]\ndrop_in_dir = ''", net="[plugins.bridge]")
    assert load(path).plugins == {}


def test_a_drop_in_may_not_configure_the_daemon(tmp_path: Path) -> None:
    assert "a drop-in holds [plugins.*] tables alone" in problems(write(tmp_path, "version = 1", a="[supervisor]"))


def test_a_plugin_defined_twice_names_both_files(tmp_path: Path) -> None:
    text = problems(write(tmp_path, "version = 1\n[plugins.x]", b="[plugins.x]"))
    assert str(tmp_path / "nodeplug.toml") in text
    assert str(tmp_path / "plugins.d" / "b.toml") in text


def test_a_wrong_key_in_a_drop_in_names_the_drop_in(tmp_path: Path) -> None:
    text = problems(write(tmp_path, "version = 1", b="[plugins.x]\ncolour = {}"))
    assert f"{tmp_path / 'plugins.d' / 'b.toml'}:2: plugins.x.colour: unknown key; allowed: uses" in text


def test_a_deadline_for_no_hook_is_refused(tmp_path: Path) -> None:
    text = problems(write(tmp_path, "version = 1\n[plugins.x]\ndeadline = {cni_ad = '1s'}"))
    assert 'plugins.x.deadline.cni_ad: unknown hook; did you mean "cni_add"?' in text


@pytest.mark.parametrize(("text", "seconds"), [("250ms", 0.25), ("10s", 10.0), ("5m", 300.0), ("1h", 3600.0)])
def test_durations_are_read_with_their_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "10", "ten s", "-1s", "1d"])
def test_a_duration_without_number_or_unit_is_refused(tmp_path: Path, text: str) -> None:
    assert "is not a duration" in problems(write(tmp_path, f"version = 1\n[supervisor]\ndevice_poll = '{text}'"))


def test_root_moves_every_path(tmp_path: Path) -> None:
    supervisor = load(write(tmp_path, "version = 1"), root=tmp_path).supervisor
    assert supervisor.below_root(supervisor.exec_socket) == tmp_path / "run/nodeplug/exec.sock"


@given(st.floats(min_value=1e-6, max_value=86400) | st.integers(1, 86400).map(float))
def test_a_duration_is_written_as_it_is_read(seconds: float) -> None:
    assert parse_duration(write_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(10.0, "10s"), (0.2, "200ms"), (60.0, "1m"), (90.0, "90s"), (7200.0, "2h"), (1.5, "1.5s")]
)
def test_a_duration_is_written_as_people_do(seconds: float, text: str) -> None:
    assert write_duration(seconds) == text


@given(st.integers(0, (1 << 63) - 1) | st.integers(0, 1 << 33).map(lambda count: count << 20))
def test_a_size_is_written_exactly(size: int) -> None:
    written = write_quantity(size)
    assert (parse_quantity(written) if isinstance(written, str) else written) == size


def test_a_size_is_written_as_people_do() -> None:
    assert [write_quantity(size) for size in (1 << 30, 1536 << 20, 1000, 0)] == ["1Gi", "1536Mi", 1000, 0]
