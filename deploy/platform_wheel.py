"""What a platform wheel has more than the plain one: the entrypoints of one kind of machine, compiled.

Owns: how they are compiled, and the names of the platforms. The plain wheel has none, needs no compiler, and fits every
machine; `make wheels` builds all.
Refuses: to pack a program whose sha256 is not in `bin/prebuilt.sha256`, which is what the tests have run and what
`nodeplug install` checks again.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MACHINE: Final = "NODEPLUG_WHEEL_MACHINE"
"""The environment variable that names the machine, as uname(2) does; unset for the plain wheel."""
COMPILERS: Final = {"x86_64": "x86_64-linux-gnu-gcc", "aarch64": "aarch64-linux-gnu-gcc"}
STYLES: Final = ("cni", "flex")
# Nothing of the compiler's build, of the folder or of the linker's defaults gets into the program.
OPTIONS: Final = (
    "-std=c11 -O2 -Wall -Wextra -s -DFREESTANDING -ffreestanding -nostdlib -static -fno-pie -no-pie "
    "-fno-stack-protector -U_FORTIFY_SOURCE -fno-ident -fno-asynchronous-unwind-tables "
    "-Wl,--build-id=none -Wl,-z,noexecstack"
)
PLACE: Final = "share/nodeplug/bin/prebuilt"
LIST: Final = "prebuilt.sha256"


def compiler_of(machine: str) -> list[str]:
    """Return the words that begin a compiler's command line for a machine of `COMPILERS`."""
    return shlex.split(os.environ.get(f"CC_{machine.upper()}", COMPILERS[machine]))


def compile_program(sources: Path, machine: str, style: str, made: Path) -> str:
    """Compile one program for the default paths; return its sha256.

    Args:
        sources: the folder of `nodeplug-entrypoint.c`.
        machine: of `COMPILERS`; `$CC` of that machine's name in capitals (`CC_X86_64`) is another compiler.
        style: "cni" or "flex".
        made: where the program is written.

    Raises:
        OSError, subprocess.CalledProcessError: the compiler is missing, or fails.
    """
    compiler = compiler_of(machine)
    what = [f"-DFLEX={int(style == 'flex')}", "nodeplug-entrypoint.c", "-o", str(made.absolute())]
    subprocess.run([*compiler, *OPTIONS.split(), *what], cwd=sources, check=True)
    return hashlib.sha256(made.read_bytes()).hexdigest()


def listed(sources: Path) -> dict[str, str]:
    """Return the sha256 that each program is to have, by "machine/style"."""
    lines = (sources / LIST).read_text(encoding="ascii").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


class EntrypointsHook(BuildHookInterface[Any]):
    """Compiles, compares, and packs."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the programs of the machine that the environment names to a wheel.

        Raises:
            RuntimeError: the machine is unknown, or a program is not the one that is listed.
        """
        machine = os.environ.get(MACHINE, "")
        if not machine or version == "editable":
            return
        if machine not in COMPILERS:
            raise RuntimeError(f"{MACHINE} is {machine!r}; it can be: {', '.join(COMPILERS)}")
        sources, folder = Path(self.root) / "bin", Path(self.directory) / "prebuilt" / machine
        folder.mkdir(parents=True, exist_ok=True)
        wanted = listed(sources)
        for style in STYLES:
            name = f"{machine}/{style}"
            found = compile_program(sources, machine, style, folder / style)
            if found != wanted.get(name):
                raise RuntimeError(
                    f"{name} has the sha256 {found}, and bin/{LIST} says {wanted.get(name)}: the source "
                    "has changed (make prebuilt), or this is not a compiler of Debian 12; build the wheels there"
                )
            build_data["shared_data"][str(folder / style)] = f"{PLACE}/{name}"
        build_data["tag"] = f"py3-none-manylinux2014_{machine}.musllinux_1_1_{machine}"


def refuse_without_compilers() -> None:
    """Refuse a machine that cannot compile every program.

    Raises:
        SystemExit: a compiler is missing; the message says which.
    """
    missing = [one for one in (compiler_of(machine)[0] for machine in COMPILERS) if shutil.which(one) is None]
    if missing:
        raise SystemExit(
            f"the compiled entrypoints need {' and '.join(missing)}; on Debian 12: apt-get install gcc libc6-dev "
            "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
        )


def main() -> None:
    """Compile every program, and list what came out; with the word `check`, only look for the compilers."""
    refuse_without_compilers()
    if sys.argv[1:] == ["check"]:
        return
    sources = Path(__file__).parents[1] / "bin"
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for machine in COMPILERS:
            for style in STYLES:
                digest = compile_program(sources, machine, style, Path(folder) / style)
                lines.append(f"{digest}  {machine}/{style}\n")
    (sources / LIST).write_text("".join(lines), encoding="ascii")


if __name__ == "__main__":
    main()
