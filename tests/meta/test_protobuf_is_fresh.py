"""The committed code in nodeplug/pb is what proto/ generates."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "supervisor" / "nodeplug" / "pb"


def generated_files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.suffix in {".py", ".pyi"}}


def test_committed_protobuf_code_is_what_the_proto_files_generate(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "proto" / "generate.py", tmp_path], check=True, capture_output=True)
    fresh = generated_files(tmp_path / "nodeplug" / "pb")
    committed = {name: text for name, text in generated_files(COMMITTED).items() if name != "__init__.py"}
    assert fresh, "nothing was generated"
    assert fresh == committed, "run `python proto/generate.py` and commit the result"


def test_file_names_are_unique_in_a_descriptor_pool() -> None:
    names = [proto.name for proto in (ROOT / "proto").glob("*.proto")]
    assert "api.proto" not in names
    assert all("nodeplug/pb/" in path.read_text() for path in COMMITTED.glob("*_pb2.py"))
    assert {f"{proto.removesuffix('.proto')}_pb2.py" for proto in names} == {p.name for p in COMMITTED.glob("*_pb2.py")}
