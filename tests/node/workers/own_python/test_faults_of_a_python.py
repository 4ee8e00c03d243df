"""The faults of a Python that a section names are told."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.node.workers.own_python.spoiled import Play, program, put_back, reason, site, spoil

from nodeplug.hosting.supervision import Supervision
from nodeplug.worker import process, wire

if TYPE_CHECKING:
    from tests.node.workers.conftest import Guests

pytestmark = pytest.mark.unprivileged
whole = pytest.mark.whole


def is_missing(python: Path) -> str:
    python.unlink()
    return "No such file or directory"


def leads_nowhere(python: Path) -> str:
    python.unlink()
    python.symlink_to("nobody")
    return "No such file or directory"


def may_not_be_executed(python: Path) -> str:
    python.unlink()
    python.write_text("#!/bin/sh\n")
    return "it is not an executable file"


def is_a_folder(python: Path) -> str:
    python.unlink()
    python.mkdir()
    return "it is not an executable file"


def is_no_program(python: Path) -> str:
    python.unlink()
    program(python, "What is this?")
    return "Exec format error"


@pytest.mark.parametrize(
    "how",
    [
        is_missing,
        *(pytest.param(how, marks=whole) for how in (is_no_program, leads_nowhere, may_not_be_executed, is_a_folder)),
    ],
)
def test_a_python_that_nobody_can_execute_is_refused_until_it_is_mended_and_reloaded(
    how: Callable[[Path], str], python: str, short_path: Path, play: Play
) -> None:
    good = Path(shutil.copy2(python, short_path / "good", follow_symlinks=False))
    why = how(Path(python))

    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section("acme", python=python), other=guests.section(name="b"))
        assert guests.state() == "refused"
        assert reason(guests) == (
            f"its Python, {python}, cannot be executed: {why}; mend that, then reload the plugin by its name"
        )
        await guests.call("device_allocate", name="other")
        put_back(good, python)
        await Supervision(guests.lifecycle).renew("guest")
        assert guests.state() == "running"

    play(story)


def has_no_nodeplug(env: Path) -> str:
    shutil.rmtree(site(env) / "nodeplug")
    return f"its Python, {env}/bin/python, has no nodeplug; install the release of the daemon there"


def has_an_older_nodeplug(env: Path) -> str:
    shutil.rmtree(site(env) / "nodeplug" / "worker")
    return f"its Python, {env}/bin/python, has an older nodeplug, without nodeplug.worker;"


def lacks_what_nodeplug_needs(env: Path) -> str:
    shutil.rmtree(site(env) / "pluggy")
    return "cannot import nodeplug: ModuleNotFoundError: No module named 'pluggy'"


def is_too_old(env: Path) -> str:
    (env / "bin" / "python").rename(env / "bin" / "real")
    pretend = 'import sys; sys.version_info = (3, 8, 2, "final", 0); exec(sys.stdin.read())'
    program(env / "bin" / "python", f"#!/bin/sh\nshift\nexec {env}/bin/real -c '{pretend}' \"$@\"\n")
    return "has version 3.8; nodeplug needs 3.11"


def speaks_another_wire(env: Path) -> str:
    spoil(env, "worker/wire.py", f"VERSION: Final = {wire.VERSION}", "VERSION: Final = 7")
    return (
        f"its nodeplug speaks version 7 of the wire and the daemon version {wire.VERSION}; install the release of the "
        "daemon there"
    )


def does_not_look_which_wire_the_daemon_speaks(env: Path) -> str:
    spoil(env, "worker/inside.py", "!= VERSION", "== 1234567")
    return speaks_another_wire(env)


def ends_without_a_word(env: Path) -> str:
    (env / "bin" / "python").unlink()
    program(env / "bin" / "python", "#!/bin/sh\nexit 3\n")
    return "the process of plugin 'guest' ended during its loading: it exited with status 3"


def writes_junk(env: Path) -> str:
    (env / "bin" / "python").unlink()
    program(env / "bin" / "python", "#!/bin/sh\necho hello >&3\nsleep 600\n")
    return "it broke the wire: its message is no JSON"


@pytest.mark.parametrize(
    "how",
    [
        *(
            pytest.param(how, marks=whole)
            for how in (
                has_no_nodeplug,
                has_an_older_nodeplug,
                is_too_old,
                speaks_another_wire,
                lacks_what_nodeplug_needs,
                does_not_look_which_wire_the_daemon_speaks,
                ends_without_a_word,
                writes_junk,
            )
        ),
    ],
)
def test_a_python_that_cannot_run_plugins_is_tried_again_and_told(
    how: Callable[[Path], str], env: Path, python: str, short_path: Path, play: Play
) -> None:
    good = Path(shutil.copytree(env, short_path / "good", symlinks=True))
    why = how(env)

    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section("acme", python=python), other=guests.section(name="b"))
        assert guests.state() == "failed"
        assert why in reason(guests)
        await guests.call("device_allocate", name="other")
        put_back(good, env)
        await guests.until(lambda: guests.state() == "running")

    play(story)


@whole
def test_a_python_of_another_wire_is_not_asked_to_load_however_late_its_hello_is_heard(
    env: Path, python: str, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    why, hear = does_not_look_which_wire_the_daemon_speaks(env), process.Worker._hear

    def hear_late(worker: process.Worker, message: wire.Message) -> None:
        time.sleep(1 if message.op == "hello" else 0)
        hear(worker, message)

    monkeypatch.setattr(process.Worker, "_hear", hear_late)

    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section("acme", python=python))
        assert guests.state() == "failed"
        assert why in reason(guests)

    play(story)


@pytest.mark.whole
def test_a_python_that_says_nothing_is_ended_when_its_time_is_over(env: Path, python: str, play: Play) -> None:
    (env / "bin" / "python").unlink()
    program(env / "bin" / "python", "#!/bin/sh\nexec sleep 600\n")

    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section("acme", python=python, load=0.5), other=guests.section(name="b"))
        assert guests.state() == "failed"
        await guests.call("device_allocate", name="other")

    play(story)


@pytest.mark.parametrize(
    ("uses", "why"),
    [
        ("broken", "plugin 'broken' of acme 1.0 cannot be imported: LookupError: there is no card"),
        pytest.param("lost", "No module named 'acme_lost'; install its package for {python}", marks=whole),
        ("acem", "no plugin 'acem' is installed; did you mean \"acme\"?"),
        pytest.param(
            "acme_nowhere:No", "No module named 'acme_nowhere'; install its package for {python}", marks=whole
        ),
    ],
)
def test_a_plugin_that_its_python_cannot_import_is_refused(uses: str, why: str, python: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(uses, python=python), other=guests.section(name="b"))
        assert guests.state() == "refused"
        assert why.format(python=python) in reason(guests)
        assert reason(guests).endswith(f" (asked of {python})")
        await guests.call("device_allocate", name="other")

    play(story)


@whole
def test_a_python_that_goes_while_its_plugin_serves_is_no_matter_until_the_process_ends(
    env: Path, python: str, play: Play
) -> None:
    away = env.with_name("away")

    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section("acme", python=python))
        put_back(env, away)
        assert (await guests.call("device_allocate")).env == {"LIBRARY": "1.0"}
        os.kill(guests.pid(), signal.SIGKILL)
        await guests.until(lambda: guests.state() == "failed")
        assert "cannot be executed: No such file or directory" in reason(guests)
        put_back(away, env)
        await guests.until(lambda: guests.state() == "running")

    play(story)


@pytest.mark.whole
@pytest.mark.node
@pytest.mark.usefixtures("of_others")
@pytest.mark.parametrize(
    "closed", ["lib", *(pytest.param(one, marks=whole) for one in ("", "bin", "site", "nodeplug"))]
)
def test_what_the_user_of_a_plugin_may_not_read_of_its_python_is_told(
    closed: str, env: Path, python: str, play: Play
) -> None:
    place = {"site": site(env), "nodeplug": site(env) / "nodeplug" / "__init__.py"}.get(closed, env / closed)
    mode = place.stat().st_mode
    shutil.rmtree(site(env) / "nodeplug" / "__pycache__", ignore_errors=True)  # with it the source need not be read

    async def story(guests: "Guests") -> None:
        section = guests.section("acme", python=python, user="nobody")
        place.chmod(0o700 if place.is_dir() else 0o600)
        await guests.apply(guest=section, other=guests.section(name="b"))
        assert guests.state() == "failed"
        verb = "execute" if closed in {"", "bin"} else "read"
        told = python if closed in {"", "bin"} else str(place)
        if closed == "nodeplug":
            assert f"cannot import nodeplug: PermissionError: [Errno 13] Permission denied: '{place}'" in reason(guests)
        else:
            assert f"its user may not {verb} {told}" in reason(guests)
        assert "where other users may read" in reason(guests) or closed == "nodeplug"
        await guests.call("device_allocate", name="other")
        place.chmod(mode)
        await guests.until(lambda: guests.state() == "running")

    play(story)
