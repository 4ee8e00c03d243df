# ruff: noqa: INP001 - a script beside its inputs, not a package
"""Generate the Python code of every .proto file in this folder.

    python proto/generate.py            into supervisor/, where it is committed
    python proto/generate.py FOLDER     into another source root, to compare

The code comes from an old protoc and the stubs from today's: generated code runs with its own and later versions of
protobuf and grpcio, and what it is generated with is thereby the lowest that users may have. `.ci/make-venv` puts the
old one beside the environment's packages, into `protoc/`.

The virtual path `nodeplug/pb` gives the modules absolute imports and their descriptors unique file names.
"""

import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
OLD = Path(sys.prefix) / "protoc"
PROTOS = [f"nodeplug/pb/{proto.name}" for proto in sorted(HERE.glob("*.proto"))]


def main(root: Path) -> int:
    """Run both; the generators of mypy-protobuf lie beside the running interpreter.

    Returns:
        The exit status of the one that fails, or 0.
    """
    if not (OLD / "grpc_tools").is_dir():
        sys.stderr.write(f"{OLD} has no grpcio-tools; .ci/make-venv says which (it has wheels up to Python 3.12)\n")
        return 1
    return _code(root) or _stubs(root)


def _code(root: Path) -> int:
    script = "import sys; from grpc_tools import protoc; sys.exit(protoc.main(sys.argv))"
    found = [f"-Inodeplug/pb={HERE}", f"-I{OLD / 'grpc_tools' / '_proto'}"]
    outputs = [f"--python_out={root}", f"--grpc_python_out={root}"]
    env = {**os.environ, "PYTHONPATH": str(OLD)}
    return subprocess.run([sys.executable, "-c", script, *found, *outputs, *PROTOS], env=env, check=False).returncode


def _stubs(root: Path) -> int:
    scripts = Path(sys.prefix) / "bin"
    return protoc.main(
        [
            "protoc",
            f"-Inodeplug/pb={HERE}",
            f"-I{files('grpc_tools') / '_proto'}",
            f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
            f"--mypy_out={root}",
            f"--mypy_grpc_out={root}",
            *PROTOS,
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "supervisor"))
