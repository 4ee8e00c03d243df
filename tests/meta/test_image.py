"""deploy/Containerfile: what stands in it is what `.ci/build-image` makes, and all of nodeplug is in the image."""

import importlib.machinery
import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).parents[2]
CONTAINERFILE = REPOSITORY / "deploy" / "Containerfile"


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    """The script that CI makes the image with."""
    loader = importlib.machinery.SourceFileLoader("build_image", str(REPOSITORY / ".ci" / "build-image"))
    loaded = importlib.util.spec_from_loader("build_image", loader)
    assert loaded is not None
    module = importlib.util.module_from_spec(loaded)
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def instructions(builder: ModuleType) -> list[tuple[str, str]]:
    return list(builder.instructions(CONTAINERFILE.read_text()))


def copied(instructions: list[tuple[str, str]]) -> set[str]:
    return {
        source
        for word, rest in instructions
        if word == "COPY" and "--from=" not in rest
        for source in rest.split()[:-1]
    }


def test_ci_follows_the_containerfile_itself_and_knows_each_instruction(
    builder: ModuleType, instructions: list[tuple[str, str]]
) -> None:
    assert {rest.split()[0] for word, rest in instructions if word == "FROM"} == set(builder.BASES)
    with pytest.raises(ValueError, match="does not know ADD"):
        builder.instructions("FROM debian:bookworm-slim\nADD a b\n")


def test_all_that_a_wheel_is_made_of_is_copied(instructions: list[tuple[str, str]]) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    targets = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*targets["only-include"], *targets["shared-data"], project["project"]["readme"]}
    needed |= {"pyproject.toml", "LICENSE", ".ci/constraints.txt", targets["hooks"]["custom"]["path"]}
    assert needed <= copied(instructions)


def test_what_is_copied_is_there_and_not_left_out_for_builders(instructions: list[tuple[str, str]]) -> None:
    ignored = (REPOSITORY / ".containerignore").read_text().split()
    assert [path for path in copied(instructions) if not (REPOSITORY / path).exists()] == []
    assert [path for path in copied(instructions) if path.split("/")[0] in ignored] == []


def test_a_change_of_what_is_copied_makes_another_image(
    builder: ModuleType, instructions: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in copied(instructions):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.setattr(builder, "HERE", tmp_path)
    before = builder.made_of(instructions)
    assert builder.made_of(instructions) == before
    (tmp_path / "bin").write_text("changed")
    assert builder.made_of(instructions) != before


def test_the_image_runs_the_daemon_in_the_way_of_a_pod(instructions: list[tuple[str, str]]) -> None:
    last = dict(instructions)
    assert last["ENTRYPOINT"] == '["/opt/nodeplug/bin/nodeplug"]'
    assert last["CMD"] == '["serve", "--take-over"]'
