# ruff: noqa: INP001 - a script beside its inputs, not a package
"""Generate the Python code of every .proto file in this folder.

    python proto/generate.py            into supervisor/, where it is committed
    python proto/generate.py FOLDER     into another source root, to compare

The virtual path `nodeplug/pb` gives the modules absolute imports and their descriptors unique file names.
"""

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent


def main(root: Path) -> int:
    """Run protoc; the generators of mypy-protobuf lie beside the running interpreter.

    Returns:
        protoc's exit status.
    """
    scripts = Path(sys.prefix) / "bin"
    return protoc.main(
        [
            "protoc",
            f"-Inodeplug/pb={HERE}",
            f"-I{files('grpc_tools') / '_proto'}",
            f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
            f"--python_out={root}",
            f"--grpc_python_out={root}",
            f"--mypy_out={root}",
            f"--mypy_grpc_out={root}",
            *(f"nodeplug/pb/{proto.name}" for proto in sorted(HERE.glob("*.proto"))),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "supervisor"))
