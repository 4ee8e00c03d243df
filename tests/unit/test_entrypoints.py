"""The texts of the scripts: pure functions over strings."""

import ast
from pathlib import Path

import pytest

from nodeplug.contract.errors import InvalidRequest, NotFound
from nodeplug.install.scripts import (
    MARKER,
    Scripts,
    compiled_ahead,
    default_interpreter,
    find_scripts,
    is_ours,
    leader,
    led_by,
    program_name,
    render,
)

SCRIPT = (
    '#!/usr/bin/python3 -IS\n"""Docstring."""\nimport posix\nSOCKET = "/run/a.sock"\nSPOOL = "/var/spool"\nrest()\n'
)


def rendered(**changes: str) -> str:
    paths = {"socket": "/s", "spool": "/p", **changes}
    return render(SCRIPT, interpreter=Path("/opt/python"), **paths).decode()


def test_interpreter_socket_and_spool_are_rewritten_and_the_rest_is_kept() -> None:
    assert rendered().splitlines() == [
        "#!/opt/python -IS",
        MARKER.decode(),
        '"""Docstring."""',
        "import posix",
        'SOCKET = "/s"',
        'SPOOL = "/p"',
        "rest()",
    ]


@pytest.mark.parametrize("path", ['/a "quoted" path', "/back\\slash\\1", "/grüße/🙂", "/new\nline"])
def test_any_path_survives_as_a_python_literal(path: str) -> None:
    line = rendered(socket=path).splitlines()[4]
    assert ast.literal_eval(line.removeprefix("SOCKET = ")) == path


def test_bytes_constant_stays_bytes() -> None:
    text = SCRIPT.replace('SOCKET = "', 'SOCKET = b"')
    assert b'SOCKET = b"/s"' in render(text, interpreter=Path("/opt/python"), socket="/s", spool="/p")


def test_script_without_a_spool_is_accepted() -> None:
    text = SCRIPT.replace('SPOOL = "/var/spool"\n', "")
    assert b"SPOOL" not in render(text, interpreter=Path("/opt/python"), socket="/s", spool="/p")


def test_script_without_a_socket_line_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="0 lines `SOCKET"):
        render("#!/usr/bin/python3\nrest()\n", interpreter=Path("/opt/python"), socket="/s", spool="/p")


def test_script_without_a_shebang_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="interpreter line"):
        render('SOCKET = ""\n', interpreter=Path("/opt/python"), socket="/s", spool="/p")


@pytest.mark.parametrize("interpreter", ["/my python/bin/python3", "/" + "x" * 250])
def test_interpreter_that_no_shebang_can_name_is_refused(interpreter: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be the interpreter"):
        render(SCRIPT, interpreter=Path(interpreter), socket="/s", spool="/p")


def test_path_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        rendered(spool="/\udcff")


def test_rendered_script_is_recognised_as_ours() -> None:
    assert is_ours(rendered().encode())


def test_compiled_program_is_recognised_by_the_marker_in_it() -> None:
    assert is_ours(b"\x7fELF\0\0" + MARKER + b"\0")
    assert not is_ours(b"\x7fELF\0\0")


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh", SCRIPT.encode(), b"#!/bin/sh\necho\n" + MARKER])
def test_other_files_are_not_recognised_as_ours(data: bytes) -> None:
    assert not is_ours(data)


def test_missing_source_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=str(tmp_path)):
        Scripts.render(socket="/s", spool="/p", source=tmp_path)


def test_default_interpreter_can_be_executed() -> None:
    assert default_interpreter().is_file()


def test_scripts_of_the_checkout_are_found_and_render() -> None:
    assert (find_scripts() / "nodeplug-cni").is_file()
    scripts = Scripts.render(socket="/elsewhere.sock", spool="/spool")
    assert b"/elsewhere.sock" in scripts.cni
    assert b"/elsewhere.sock" in scripts.flex
    compile(scripts.cni, "nodeplug-cni", "exec")
    compile(scripts.flex, "nodeplug-flex", "exec")


def test_script_that_is_compiled_ahead_keeps_its_head_and_its_source() -> None:
    plain = rendered()
    ahead = compiled_ahead(plain.encode()).decode()
    assert ahead.splitlines()[:2] == plain.splitlines()[:2]
    assert plain.split("\n", 2)[2] in ahead
    assert is_ours(ahead.encode())


def test_script_is_compiled_to_the_same_bytes_each_time() -> None:
    assert Scripts.render(socket="/s", spool="/p") == Scripts.render(socket="/s", spool="/p")


@pytest.mark.parametrize("path", ["/three ''' quotes", "/back\\slash", "/grüße"])
def test_any_path_survives_the_compilation(path: str) -> None:
    # Both halves of the script, as an interpreter of this and of another bytecode runs them.
    script = compiled_ahead(rendered(socket=path).replace("import posix", "").encode()).decode()
    for text in (script, script.replace("MAGIC_NUMBER == ", "MAGIC_NUMBER != ")):
        seen: dict[str, object] = {"rest": lambda: None}
        exec(text, seen)
        assert seen["SOCKET"] == path


def test_interpreter_whose_path_is_not_utf8_is_kept() -> None:
    script = render(SCRIPT, interpreter=Path("/py\udcff"), socket="/s", spool="/p")
    assert compiled_ahead(script).startswith(b"#!/py\xff -IS\n")


def test_script_that_names_a_program_differs_in_its_first_line_alone() -> None:
    script = rendered().encode()
    led = led_by(script, Path("/bin/.nodeplug.0"))
    assert led.partition(b"\n") == (b"#!/bin/.nodeplug.0", b"\n", script.partition(b"\n")[2])
    assert is_ours(led)


def test_script_that_names_a_program_is_still_python() -> None:
    compile(led_by(Scripts.render(socket="/s", spool="/p").cni, Path("/bin/.nodeplug.0")), "nodeplug-cni", "exec")


def test_leader_is_what_the_first_line_names() -> None:
    assert leader(rendered().encode()) == Path("/opt/python")
    assert leader(led_by(rendered().encode(), Path("/bin/.nodeplug.0"))) == Path("/bin/.nodeplug.0")
    assert leader(b"") == Path()


@pytest.mark.parametrize("folder", ["/my bin", "/" + "x" * 250])
def test_program_whose_path_no_first_line_can_name_is_refused(folder: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be the interpreter"):
        led_by(b"", Path(folder, ".nodeplug.0"))


def test_programs_of_other_bytes_have_other_hidden_names() -> None:
    assert program_name(b"a").startswith(".nodeplug.")
    assert program_name(b"a") == program_name(b"a") != program_name(b"b")
