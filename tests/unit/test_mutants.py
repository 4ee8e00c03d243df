import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.mutants import instrumented
from tests.mutants.judging import Verdict, Verdicts
from tests.mutants.mapping import Map, Mapped, complete, is_mutated
from tests.mutants.mutations import find
from tests.mutants.report import report
from tests.mutants.sample import Mutant, choose, room_of, shares

CODE = '''"""A module."""
from __future__ import annotations

LIMIT = 3


def first(number: int, step: int = 2) -> int:
    """Do something."""
    if number < step and number:
        LOG.info("it is %d", number + 1)
        raise ValueError("too small")
    return number + step


class Counter:
    total = 4

    def count(self, words: list[str]) -> bool:
        for word in words:
            self.total = len(word[1:])
            if word == "end":
                break
        return bool(words)
'''


def changed(source: str) -> set[str]:
    """Return the lines that mutations of a source make."""
    lines = source.encode()
    return {mutation.apply(lines).decode().splitlines()[mutation.line - 1].strip() for mutation in find(lines)}


def in_function(statement: str) -> set[str]:
    """Return what mutations make of a statement in a loop of a function."""
    return changed(f"def f(self, a, b):\n  while a:\n    {statement}\n") - {"while not (a):"}


@pytest.mark.parametrize(
    ("statement", "mutants"),
    [
        ("x = a < b", {"x = a <= b", "x = a >= b"}),
        ("x = a is not b", {"x = a is b"}),
        ("x = (a) in (b)", {"x = (a) not in (b)"}),
        ("x = a and b", {"x = a or b"}),
        ("x = not a", {"x =  a"}),
        ("x = a - b", {"x = a + b"}),
        ("x += a", {"x -= a"}),
        ("x = -a", {"x = a"}),
        ("x = 1", {"x = 2", "x = 0"}),
        ("x = True", {"x = False"}),
        ("x = 0.5", {"x = 1.0"}),
        ("x = a if b else self", {"x = a if not (b) else self"}),
        ("x = [c for c in a if c]", {"x = [c for c in a if not (c)]"}),
        ("x = a[:b]", {"x = a[:]"}),
        ("x = a['b']", {'x = a["bX"]'}),
        ("x = {'a': b}", {'x = {"aX": b}'}),
        ("return a", {"return None"}),
        ("a(b)", {"pass"}),
        ("await a(b)", {"pass"}),
        ("raise a(1)", {"pass"}),
        ("self.a = b", {"pass"}),
        ("del a", {"pass"}),
        ("break", {"continue"}),
        ("continue", {"break"}),
    ],
)
def test_each_kind_of_code_has_mutants(statement: str, mutants: set[str]) -> None:
    assert in_function(statement) == mutants


@pytest.mark.parametrize(
    "statement",
    [
        "LOG.warning('%d', 1 + a)",
        "self._log.info(a < b)",
        "x: int | a = b",
        "x = isinstance(a, int | str)",
        "x = f'{1 + 1}'",
        "'a text'",
        "return None",
        "x = a + 'text'",
    ],
)
def test_text_for_people_and_types_have_none(statement: str) -> None:
    assert in_function(statement) == set()


def test_only_functions_have_mutants() -> None:
    lines = {mutation.line for mutation in find(CODE.encode())}
    assert lines == {7, 9, 11, 12, 20, 21, 22, 23}


def test_a_mutant_keeps_every_other_byte() -> None:
    source = "def f(a):\n    # ä comment\n    return 'ö', a [ 0 ]   # and one more\n"
    assert source.replace("0", "1") in {mutation.apply(source.encode()).decode() for mutation in find(source.encode())}


def test_a_mutation_knows_the_innermost_function_that_it_is_in() -> None:
    found = find(b"def outer():\n    def inner():\n        return 5\n    return lambda: 7\n")
    assert {mutation.function for mutation in found if mutation.text in {"6", "8"}} == {1, 2}


def test_a_change_that_is_no_python_is_recognised() -> None:
    source = b"def f(a):\n    return a\n"
    (returned,) = find(source)
    assert returned.compiles(source)
    assert not replace(returned, text="+").compiles(source)


def instrumented_module(source: str) -> tuple[SimpleNamespace, list[int]]:
    seen: list[int] = []
    numbers = {line: line for line in range(1, 100)}
    module = SimpleNamespace(__name__="made")
    sys.modules["nodeplug_seen"] = SimpleNamespace(seen=seen.append)  # type: ignore[assignment]
    try:
        exec(instrumented.instrument(source.encode(), "made.py", numbers), vars(module))
    finally:
        del sys.modules["nodeplug_seen"]
    return module, seen


def test_an_instrumented_function_tells_its_number_and_does_what_it_did() -> None:
    module, seen = instrumented_module(CODE)
    assert module.first(5) == 7
    assert module.Counter().count(["a", "end"]) is True
    assert seen == [7, 18]


def test_an_instrumented_function_keeps_its_docstring_and_its_lines() -> None:
    module, _ = instrumented_module(CODE)
    assert (module.__doc__, module.first.__doc__) == ("A module.", "Do something.")
    with pytest.raises(NameError) as raised:
        module.first(1)
    assert raised.traceback[-1].lineno == 9  # counted from 0
    assert inspect.unwrap(module.first).__code__.co_firstlineno == 7


@pytest.mark.parametrize("body", ["yield 1", "async with a: pass", "...", "if a: pass", "@a\n    def g(): pass"])
def test_every_kind_of_body_can_be_instrumented(body: str) -> None:
    instrumented_module(f"async def f():\n    {body}\n")


def test_python_runs_the_instrumented_code_and_leaves_it(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text("def f():\n    return 1\n")
    (tmp_path / "nodeplug_seen.py").write_text("def seen(number):\n    print('seen', number)\n")
    instrumented.write(tmp_path / "made.py", {1: 17})
    (tmp_path / "made.py").touch()
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", "import made; made.f()"], cwd=tmp_path, stdout=-1, check=True)
        assert done.stdout == b"seen 17\n"
    instrumented.remove(tmp_path)
    assert not list(tmp_path.rglob("*.pyc"))


@pytest.fixture
def recorder(tmp_path: Path) -> Callable[[str, dict[str, str]], str]:
    """Return a function that runs code beside a recorder and returns the log."""
    place = tmp_path / "nodeplug_seen.py"
    origin = Path(instrumented.__file__).with_name("seen.py")
    place.write_bytes(origin.read_bytes())
    (tmp_path / "nodeplug_seen.py.tests").mkdir()
    log = tmp_path / "nodeplug_seen.py.log"
    log.touch()

    def run(code: str, env: dict[str, str]) -> str:
        subprocess.run(
            [sys.executable, "-c", f"from nodeplug_seen import seen\n{code}"], cwd=tmp_path, env=env, check=False
        )
        return log.read_text()

    return run


def test_each_process_tells_a_function_once_in_a_test(recorder: Callable[[str, dict[str, str]], str]) -> None:
    assert recorder("seen(3); seen(3); seen(4)", {"NODEPLUG_TEST": "quick a.py"}) == "quick a.py 3\nquick a.py 4\n"


def test_what_a_process_told_outlives_sigkill(recorder: Callable[[str, dict[str, str]], str]) -> None:
    code = "import os; seen(3); os.kill(os.getpid(), 9)"
    assert recorder(code, {"NODEPLUG_TEST": "quick a.py"}) == "quick a.py 3\n"


def test_a_forked_process_tells_for_the_test_that_it_is_given(recorder: Callable[[str, dict[str, str]], str]) -> None:
    code = (
        "import os; seen(3)\nif os.fork() == 0:\n  os.environ['NODEPLUG_TEST'] = 'rest b.py'; seen(3)\nelse: os.wait()"
    )
    assert recorder(code, {"NODEPLUG_TEST": "quick a.py"}) == "quick a.py 3\nrest b.py 3\n"


def test_a_process_with_an_environment_of_its_own_tells_for_the_test_above_it(
    recorder: Callable[[str, dict[str, str]], str],
) -> None:
    child = "import nodeplug_seen; nodeplug_seen.seen(5)"
    code = "import os; open(f'nodeplug_seen.py.tests/{os.getpid()}', 'w').write('quick c.py')\n"
    code += f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], env={{}})"
    assert recorder(code, {}) == "quick c.py 5\n"


SOURCES = {
    f"supervisor/nodeplug/{room}/code.py": (room * 40, CODE.replace("count", f"count_{room}").encode())
    for room in "abc"
}


def test_a_sample_is_the_same_for_a_seed() -> None:
    assert choose(SOURCES, 1, 9) == choose(dict(reversed(SOURCES.items())), 1, 9)
    assert choose(SOURCES, 1, 9) != choose(SOURCES, 2, 9)


def test_a_larger_sample_contains_a_smaller_one() -> None:
    assert set(choose(SOURCES, 1, 6)) < set(choose(SOURCES, 1, 12))


def test_no_line_is_chosen_twice() -> None:
    chosen = choose(SOURCES, 1, 24)
    assert len({(mutant.path, mutant.mutation.line) for mutant in chosen}) == len(chosen) == 24


def test_each_room_has_a_mutant_and_large_ones_have_more() -> None:
    assert shares({"small": 1, "middle": 300, "large": 699}, 10) == {"small": 1, "middle": 3, "large": 6}
    assert shares({"one": 1, "two": 1}, 1) == {"one": 1, "two": 1}


def test_rooms_are_packages_of_the_daemon_and_of_plugins() -> None:
    paths = ["supervisor/nodeplug/cni/codec.py", "supervisor/nodeplug/parts.py", "plugins/nodeplug_net/vlan/plugin.py"]
    assert list(map(room_of, paths)) == ["cni", "nodeplug", "nodeplug_net"]


def test_generated_code_and_what_is_executed_as_a_file_has_no_mutants() -> None:
    assert is_mutated("supervisor/nodeplug/cni/codec.py")
    assert not is_mutated("supervisor/nodeplug/pb/api_pb2.py")
    assert not is_mutated("supervisor/nodeplug/worker/launching.py")


def a_copy(tmp_path: Path, seen: list[tuple[str, str, int]], *notes: dict[str, object]) -> SimpleNamespace:
    place = tmp_path / "notes.jsonl"
    place.write_text("".join(json.dumps(note) + "\n" for note in notes))
    return SimpleNamespace(seen=lambda: seen, notes=place)


def test_a_map_is_kept_and_only_changed_files_of_tests_are_missing(tmp_path: Path) -> None:
    note = {"suite": "quick", "file": "a.py", "test": "a.py::t", "seconds": 2.5, "failed": False}
    copy = a_copy(tmp_path, [("quick", "a.py", 7), ("rest", "a.py", 8), ("-", "-", 9)], note)
    Map(tmp_path / "map.json", "now").add("quick", {"a.py": "1", "b.py": "1"}, copy)  # type: ignore[arg-type]
    read = Map(tmp_path / "map.json", "now")
    assert read.suites["quick"]["a.py"] == Mapped("1", 2.5, [], [7], "now")
    assert read.missing("quick", {"a.py": "1", "b.py": "2", "c.py": "1"}) == ["b.py", "c.py"]
    assert read.missing("rest", {"a.py": "1"}) == ["a.py"]


def test_a_file_with_a_test_that_fails_without_a_change_runs_again_once_any_test_is_other(tmp_path: Path) -> None:
    note = {"suite": "quick", "file": "a.py", "test": "a.py::t", "seconds": 2.5, "failed": True}
    mapped = Map(tmp_path / "map.json", "now")
    mapped.add("quick", {"a.py": "1"}, a_copy(tmp_path, [], note))  # type: ignore[arg-type]
    assert mapped.suites["quick"]["a.py"].failed == ["a.py::t"]
    assert mapped.missing("quick", {"a.py": "1"}) == []
    assert Map(tmp_path / "map.json", "later").missing("quick", {"a.py": "1"}) == ["a.py"]


class ImpatientCopy:
    """A copy in which a run of more than one file takes longer than it may."""

    parallel = ()
    root = output = Path()

    def __init__(self, notes: Path, longest: int) -> None:
        self.notes, self.longest, self.last = notes, longest, list[str]()

    def objects(self, *_: str) -> dict[str, str]:
        return {}

    def instrument(self, _: object) -> None: ...

    def plain(self) -> None: ...

    def seen(self) -> list[tuple[str, str, int]]:
        return [("quick", name, 7) for name in self.last]

    def test(self, files: list[str], _: object, __: float) -> int | None:
        self.last = files
        self.notes.write_text("")
        return 0 if len(files) <= self.longest else None


def test_what_takes_too_long_together_is_mapped_in_smaller_pieces(tmp_path: Path) -> None:
    mapped = Map(tmp_path / "map.json", "now")
    files = {f"{number}.py": "1" for number in range(30)}
    complete(mapped, "quick", files, ImpatientCopy(tmp_path / "notes", 3))  # type: ignore[arg-type]
    assert {name: one.functions for name, one in mapped.suites["quick"].items()} == {name: [7] for name in files}


def test_a_file_that_takes_too_long_by_itself_ends_the_map_with_its_name(tmp_path: Path) -> None:
    mapped = Map(tmp_path / "map.json", "now")
    with pytest.raises(SystemExit, match=r"a\.py takes longer than an hour"):
        complete(mapped, "quick", {"a.py": "1", "b.py": "1"}, ImpatientCopy(tmp_path / "notes", 0))  # type: ignore[arg-type]
    assert mapped.missing("quick", {"a.py": "1"}) == ["a.py"]


def test_a_map_names_the_cheapest_file_of_tests_first(tmp_path: Path) -> None:
    mapped = Map(tmp_path / "map.json", "now")
    mapped.suites["quick"] = {name: Mapped("1", cost, [], [3]) for name, cost in {"slow": 9.0, "fast": 1.0}.items()}
    assert mapped.executing("quick", 3, [3], ["slow", "fast", "unknown"]) == ["fast", "slow"]
    assert mapped.executing("rest", 3, [3], ["slow", "fast"]) == []


def test_a_function_of_imports_is_tried_by_what_executes_its_module(tmp_path: Path) -> None:
    mapped = Map(tmp_path / "map.json", "now")
    mapped.suites["rest"] = {"a.py": Mapped("1", 1.0, [], [4]), "b.py": Mapped("1", 1.0, [], [9])}
    assert mapped.executing("rest", 3, [3, 4], ["a.py", "b.py"]) == ["a.py"]


def a_verdict(mutant: Mutant, suite: str, outcome: str, tests: str) -> Verdict:
    return Verdict(mutant.key, suite, outcome, "", 1, 1.0, tests)


def test_a_kill_is_kept_and_a_survivor_is_tried_again_with_other_tests(tmp_path: Path) -> None:
    killed, survivor, *_ = choose(SOURCES, 1, 3)
    before = Verdicts(tmp_path / "verdicts", "before")
    before.add(a_verdict(killed, "quick", "killed", "before"))
    before.add(a_verdict(survivor, "quick", "survived", "before"))
    after = Verdicts(tmp_path / "verdicts", "after")
    assert after.of(killed, "quick") is not None
    assert after.of(survivor, "quick") is None
    assert Verdicts(tmp_path / "verdicts", "before").of(survivor, "quick") is not None


def test_a_report_counts_by_room_and_shows_what_survived(tmp_path: Path) -> None:
    sample = choose(SOURCES, 1, 4)
    verdicts = Verdicts(tmp_path / "verdicts", "now")
    for mutant, outcomes in zip(sample, [["killed"], ["survived", "timeout"], ["survived", "survived"]], strict=False):
        for suite, outcome in zip(["quick", "rest"], outcomes, strict=False):
            verdicts.add(a_verdict(mutant, suite, outcome, "now"))
    lines = list(report(sample, verdicts, lambda mutant: mutant.difference(SOURCES[mutant.path][1])))
    assert lines[0].startswith(f"survived: {sample[2].path}:")
    assert lines[1].startswith(f"--- a/{sample[2].path}\n+++ b/")
    assert lines[-2].split() == ["all", "4", "1", "1", "1", "0", "1"]
    assert lines[-1] == "the quick suite kills 1 of the 2 that tests kill: 50%"
