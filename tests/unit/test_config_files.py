"""What may lie where a configuration is expected."""

import difflib
import os
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.suites import divided

from nodeplug.cli.effective import examine
from nodeplug.config import ConfigError, Configuration, load, read
from nodeplug.config.files import LARGEST_FILE


def problems(path: Path) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(path)
    return caught.value.problems


def main(folder: Path, text: str) -> Path:
    path = folder / "nodeplug.toml"
    path.write_text(text)
    return path


def drop_in(folder: Path, name: str, text: str) -> Path:
    (folder / "plugins.d").mkdir(exist_ok=True)
    path = folder / "plugins.d" / name
    path.write_text(text)
    return path


def test_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "nodeplug.toml"
    os.mkfifo(path)
    assert problems(path) == (f"{path}: is a FIFO; a configuration is a regular file",)


def test_a_device_node_is_refused_without_opening_it() -> None:
    assert problems(Path("/dev/zero"))[0] == "/dev/zero: is a device node; a configuration is a regular file"


def test_a_folder_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path) == (f"{tmp_path}: is a folder; a configuration is a regular file",)


def test_a_socket_in_the_place_of_the_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s.toml")
    assert "is a socket" in problems(Path("s.toml"))[0]


def test_a_huge_sparse_file_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "nodeplug.toml"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert problems(path) == (f"{path}: is larger than 1 MiB, which no configuration is",)


def test_a_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    text = "version = 1\n#"
    assert load(main(tmp_path, text + "x" * (LARGEST_FILE - len(text)))).plugins == {}


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000 + "]" * 5000,
        "a = " + "{a = " * 5000 + "1" + "}" * 5000,
        f"[{'.'.join('a' * 5000)}]",
        "a = " + "[" * 40 + "]" * 40,
    ],
    ids=["lists", "inline tables", "dotted keys", "forty"],
)
def test_deep_nesting_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = main(tmp_path, f"version = 1\n{text}\n")
    assert all("is nested too deep; at most 32" in line or "unknown key" in line for line in problems(path))
    assert any("is nested too deep" in line for line in problems(path))


@pytest.mark.parametrize(
    "text", divided(["[plugins{}.a]", "a{} = 1", "a = {{ b{} = 1 }}", "a = [{{ b{} = 1 }}]"], {"[plugins{}.a]"})
)
def test_many_dots_cost_no_memory(tmp_path: Path, text: str) -> None:
    path = main(tmp_path, "version = 1\n" + text.format(".a" * 50_000) + "\n")
    script = (
        "import resource, sys; from pathlib import Path; from nodeplug.config import read;"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); print(*read(Path(sys.argv[1])).mistakes)"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert f"{path}:2: is nested too deep" in ended.stdout, ended.stderr[-1000:]


def test_what_is_before_a_text_without_an_end_is_found_in_few_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["version = 1", "[supervisor]", 'state_dir = "/here"', "[plugins.a]", 'text = """', *["line"] * 1000]
    path = main(tmp_path, "\n".join(lines))
    attempts, loads = 0, tomllib.loads

    def counted(text: str) -> dict[str, object]:
        nonlocal attempts
        attempts += 1
        return loads(text)

    monkeypatch.setattr(tomllib, "loads", counted)
    reading = read(path)
    assert reading.configuration.supervisor.state_dir == Path("/here")
    assert attempts < 20


@pytest.mark.parametrize("number", ["9" * 4301, "9" * 30, "0x" + "f" * 5000, "-" + "9" * 19 + "9"])
def test_a_number_that_64_bits_do_not_hold_is_refused(tmp_path: Path, number: str) -> None:
    path = main(tmp_path, f"version = 1\n[plugins.a.config]\nx = {number}\n")
    (line,) = problems(path)
    assert line.startswith(str(path))
    assert "number of more than 64 bits" in line


def test_a_number_of_thousands_of_digits_among_right_keys_names_its_own(tmp_path: Path) -> None:
    path = main(tmp_path, f"version = 1\n[plugins.a.config]\ny = 1\nx = 0x{'f' * 5000}\n")
    assert problems(path)[0].startswith(f"{path}:4: plugins.a.config.x: is a number of more than 64 bits")


def test_a_nul_in_a_text_is_refused_with_its_key(tmp_path: Path) -> None:
    path = main(tmp_path, 'version = 1\n[supervisor]\ndrop_in_dir = "a\\u0000b"\n')
    assert problems(path)[0].startswith(f"{path}:3: supervisor.drop_in_dir: holds a NUL")


def test_bytes_that_are_no_utf_8_name_their_line(tmp_path: Path) -> None:
    path = tmp_path / "nodeplug.toml"
    path.write_bytes(b"version = 1\n# \xff\n")
    assert problems(path) == (f"{path}:2: is not TOML: byte 14 of the file is not valid UTF-8",)


def test_each_broken_file_is_told_and_hides_no_other(tmp_path: Path) -> None:
    path = main(tmp_path, "version = = 1\n")
    first = drop_in(tmp_path, "a.toml", "[plugins.a]\nx = = 1\n")
    second = drop_in(tmp_path, "b.toml", "[plugins.b]\ncolour = 1\n")
    third = drop_in(tmp_path, "c.toml", "[plugins.c\n")
    told = problems(path)
    assert [line.partition(": ")[0] for line in told] == [f"{path}:1", f"{first}:2", f"{second}:2", f"{third}:1"]


@pytest.mark.parametrize("end", ["listen = = 1\n", "listen = [\n", 'listen = """\nx\ny\n', "[plugins.a\n"])
def test_what_stands_before_a_mistake_of_syntax_says_where_the_daemon_is(tmp_path: Path, end: str) -> None:
    path = main(tmp_path, f'version = 1\n\n[supervisor]\nroot = "/x"\nexec_socket = "/y.sock"\n{end}')
    assert read(path).configuration.supervisor.paths.exec_socket == Path("/x/y.sock")


def test_hidden_files_of_editors_are_no_drop_ins(tmp_path: Path) -> None:
    path = main(tmp_path, "version = 1\n")
    drop_in(tmp_path, "a.toml", "[plugins.a]\n")
    (tmp_path / "plugins.d" / ".#a.toml").symlink_to("somebody@host.1234")
    assert list(load(path).plugins) == ["a"]


# --- the drop-in folder --------------------------------------------------------------------------------------


def test_a_default_folder_that_is_not_there_is_no_mistake(tmp_path: Path) -> None:
    assert load(main(tmp_path, "version = 1\n")).plugins == {}


@pytest.mark.parametrize("name", ["plugins.b", "plugins.d", "/nowhere/at/all"])
def test_a_named_folder_that_is_not_there_is_a_mistake(tmp_path: Path, name: str) -> None:
    path = main(tmp_path, f'version = 1\n[supervisor]\ndrop_in_dir = "{name}"\n')
    (line,) = problems(path)
    assert line.startswith(f"{path}:3: supervisor.drop_in_dir: the folder {tmp_path / name} does not exist")


def test_a_default_folder_that_leads_nowhere_is_a_mistake(tmp_path: Path) -> None:
    path = main(tmp_path, "version = 1\n")
    (tmp_path / "plugins.d").symlink_to("elsewhere")
    (line,) = problems(path)
    assert line.startswith(f"{path}: supervisor.drop_in_dir: the folder {tmp_path}/plugins.d does not exist")


def test_a_file_in_the_place_of_the_folder_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "plugins.d").touch()
    text = f"{tmp_path / 'plugins.d'}: the drop-in folder cannot be read: Not a directory"
    assert problems(main(tmp_path, "version = 1\n")) == (text,)


def test_a_folder_that_was_read_may_not_vanish(tmp_path: Path) -> None:
    path = main(tmp_path, "version = 1\n")
    drop_in(tmp_path, "a.toml", "[plugins.a]\n")
    before = read(path)
    (tmp_path / "plugins.d").rename(tmp_path / "x")
    (line,) = read(path, before=before).mistakes
    assert line.startswith(f"{tmp_path / 'plugins.d'}: the drop-in folder is gone")


def test_a_folder_that_comes_later_may_not_vanish_again(tmp_path: Path) -> None:
    path = main(tmp_path, "version = 1\n")
    before = read(path)
    drop_in(tmp_path, "a.toml", "[plugins.a]\n")
    between = read(path, before=before)
    assert list(between.whole().plugins) == ["a"]
    (tmp_path / "plugins.d").rename(tmp_path / "x")
    assert read(path, before=between).mistakes


def test_a_folder_that_lost_its_last_file_is_no_mistake(tmp_path: Path) -> None:
    path = main(tmp_path, "version = 1\n")
    file = drop_in(tmp_path, "a.toml", "[plugins.a]\n")
    before = read(path)
    file.unlink()
    assert read(path, before=before).whole().plugins == {}


def test_another_folder_is_not_read_before_a_restart(tmp_path: Path) -> None:
    path = main(tmp_path, "version = 1\n")
    drop_in(tmp_path, "a.toml", "[plugins.a]\n")
    before = read(path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.toml").write_text("[plugins.b]\n")
    main(tmp_path, 'version = 1\n[supervisor]\ndrop_in_dir = "other"\n')
    assert list(read(path, before=before).whole().plugins) == ["a"]
    assert list(read(path).whole().plugins) == ["b"]


def test_another_folder_that_does_not_exist_is_told_before_the_restart(tmp_path: Path) -> None:
    path = main(tmp_path, "version = 1\n")
    drop_in(tmp_path, "a.toml", "[plugins.a]\n")
    before = read(path)
    main(tmp_path, 'version = 1\n[supervisor]\ndrop_in_dir = "typo"\n')
    assert "does not exist" in read(path, before=before).mistakes[0]


# --- any bytes ---------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(
    ["version", "supervisor", "plugins", "root", "drop_in_dir", "config", "deadline", "uses", "cni_add", '""', "a"]
)
SCALARS = st.sampled_from(
    [
        "1",
        "1.5",
        "nan",
        "-inf",
        "true",
        '""',
        '"10s"',
        "'plugins.d'",
        '"\\u0000"',
        "1979-05-27",
        "[]",
        "{}",
        "0x" + "f" * 20,
    ]
)
LINES = st.one_of(
    st.builds("{} = {}".format, st.lists(KEYS, min_size=1, max_size=4).map(".".join), SCALARS),
    st.builds("[{}]".format, st.lists(KEYS, min_size=1, max_size=5).map(".".join)),
    st.builds("[[{}]]".format, st.lists(KEYS, min_size=1, max_size=3).map(".".join)),
    st.text(max_size=20),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=400), st.lists(LINES, max_size=12).map(lambda lines: "\n".join(lines).encode())))
def test_any_bytes_become_a_configuration_or_sentences(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "plugins.d").mkdir(exist_ok=True)
    for path in (tmp_path / "nodeplug.toml", tmp_path / "plugins.d" / "a.toml"):
        path.write_bytes(data)
        reading = read(tmp_path / "nodeplug.toml")
        assert isinstance(reading.configuration, Configuration)
        assert all(line and line.isprintable() for line in reading.mistakes), reading.mistakes
        assert not any("validation" in line or "Input should" in line for line in reading.mistakes)
        (tmp_path / "nodeplug.toml").write_text("version = 1\n")


MANY = {
    "keys": ("", "k{} = 1"),
    "tables": ("", "[t{}]"),
    "keys of the daemon": ("[supervisor]\n", "k{} = 1"),
    "sections": ("", "[plugins.p{}]\nx = 1"),
    "deadlines": ("[plugins.x.deadline]\n", "k{} = '1s'"),
}


def many(folder: Path, kind: str, count: int) -> Path:
    head, line = MANY[kind]
    return main(folder, f"version = 1\n{head}" + "".join(f"{line.format(number)}\n" for number in range(count)))


@pytest.mark.parametrize("kind", MANY)
def test_of_very_many_mistakes_the_first_are_told_and_the_rest_are_counted(tmp_path: Path, kind: str) -> None:
    told = problems(many(tmp_path, kind, 400))
    lines = [int(line.split(":")[1]) for line in told[:-1]]
    assert (len(lines), lines, told[-1]) == (100, sorted(lines), "and 300 more mistakes")
    assert all("allowed: " in line for line in told[:-1])


@pytest.mark.parametrize("kind", MANY)
def test_only_for_mistakes_that_are_told_is_the_meant_word_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    searches, search = 0, difflib.get_close_matches

    def counted(*arguments: Any, **how: Any) -> list[str]:
        nonlocal searches
        searches += 1
        return search(*arguments, **how)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    problems(many(tmp_path, kind, 400))
    assert searches == 100


def test_what_is_installed_is_looked_up_once_for_all_sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lookups, look_up = 0, metadata.distributions

    def counted() -> Any:
        nonlocal lookups
        lookups += 1
        return look_up()

    monkeypatch.setattr("nodeplug.loading.discovery.distributions", counted)
    sections = "".join(f"[plugins.absent{number}]\n" for number in range(50))
    assert len(examine(read(main(tmp_path, f"version = 1\n{sections}"))).problems) == 50
    assert lookups == 1


def steps(action: Callable[[], object]) -> int:
    """Count the lines of Python that an action executes, each turn of a loop anew."""
    count, before = 0, sys.gettrace()

    def trace(_: FrameType, event: str, __: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("kind", divided(MANY, {"keys"}))
def test_twice_as_many_mistakes_take_twice_as_many_steps(tmp_path: Path, kind: str) -> None:
    read(many(tmp_path, kind, 400))  # what is executed once in a process is no part of the count
    few, more, most = (steps(partial(read, many(tmp_path, kind, count))) for count in (400, 800, 1600))
    assert most - more < 3 * (more - few), "twice would be linear, four times quadratic"
