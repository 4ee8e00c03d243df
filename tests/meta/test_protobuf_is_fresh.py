"""The committed code in nodeplug/pb is what proto/ generates."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "supervisor" / "nodeplug" / "pb"


def generated_files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.suffix in {".py", ".pyi"}}


needs_protoc = pytest.mark.skipif(
    not (Path(sys.prefix) / "protoc").is_dir(), reason="needs grpcio-tools 1.62.3, which has no wheel for this Python"
)


@needs_protoc
def test_committed_protobuf_code_is_what_the_proto_files_generate(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "proto" / "generate.py", tmp_path], check=True, capture_output=True)
    fresh = generated_files(tmp_path / "nodeplug" / "pb")
    committed = {name: text for name, text in generated_files(COMMITTED).items() if name != "__init__.py"}
    assert fresh, "nothing was generated"
    assert fresh == committed, "run `make proto` and commit the result"


def test_file_names_are_unique_in_a_descriptor_pool() -> None:
    names = [proto.name for proto in (ROOT / "proto").glob("*.proto")]
    assert "api.proto" not in names
    assert all("nodeplug/pb/" in path.read_text() for path in COMMITTED.glob("*_pb2.py"))
    assert {f"{proto.removesuffix('.proto')}_pb2.py" for proto in names} == {p.name for p in COMMITTED.glob("*_pb2.py")}


def test_generated_code_demands_no_later_library_than_the_lowest_that_is_allowed() -> None:
    """A check of the runtime's version in it would demand the version of its generator."""
    lowest = dict(re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / ".ci" / "lowest.txt").read_text(), re.MULTILINE))
    for path in COMMITTED.glob("*_pb2*.py"):
        text = path.read_text()
        assert "ValidateProtobufRuntimeVersion" not in text
        assert "GRPC_GENERATED_VERSION" not in text
        assert re.findall(r"Protobuf Python Version: ([\d.]+)", text) in ([], [lowest["protobuf"]])


def test_the_lowest_versions_that_are_tested_are_those_that_are_allowed() -> None:
    """The floor of a project's own dependency is written without a last zero."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tested = re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / ".ci" / "lowest.txt").read_text(), re.MULTILINE)
    allowed = sorted([*project["dependencies"], *project["optional-dependencies"]["daemon"]])
    assert allowed == [f"{name}>={version.removesuffix('.0')}" for name, version in tested]
