"""The text of the entrypoint scripts, made fit for one node.

Owns: where the scripts of `bin/` lie in a checkout and in an installation, the lines of them that differ from node to
node (the interpreter, the daemon's socket, the spool), the code that is compiled ahead for their interpreter, and the
first line that starts a compiled program in its place.
Refuses: to write anything (see `nodeplug.install.files`), and knowledge of what the scripts do. For their twin in C see
`nodeplug.install.native`.
"""

import hashlib
import json
import marshal
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Final, Self

from nodeplug.contract.errors import InvalidRequest, NotFound

CNI_SCRIPT: Final = "nodeplug-cni"
FLEX_SCRIPT: Final = "nodeplug-flex"
MARKER: Final = b"# Installed by nodeplug; `nodeplug uninstall` removes it."
"""The second line of each installed script, and a string in each compiled one: what makes a file ours."""
PROGRAM: Final = ".nodeplug."
"""How the names of compiled programs begin; kubelet ignores what begins with a dot."""
_SYSTEM_PYTHON: Final = Path("/usr/bin/python3")
_SHEBANG_LIMIT: Final = 240
_SHARE: Final = Path("share/nodeplug/bin")
_QUOTE: Final = "'''"
# Version 2 of marshal has no references between objects, which depend on how often an object is used elsewhere: the
# same script gives the same bytes, so that a second installation changes nothing.
_MARSHAL_VERSION: Final = 2
_AHEAD: Final = """\
{head}
# The script, and the same as code for interpreters whose bytecode has this number: compiling it would cost each call
# about 0.8 ms. Any other interpreter, such as a newer one of this host, compiles the source.
SCRIPT = r'''
{source}'''
try:
    from _frozen_importlib_external import MAGIC_NUMBER

    if MAGIC_NUMBER == {magic!r}:
        import marshal

        SCRIPT = marshal.loads(bytes.fromhex('{code}'))
except BaseException:
    pass
exec(SCRIPT)
"""


@dataclass(frozen=True, slots=True)
class Scripts:
    """The two entrypoints, ready to be written.

    Attributes:
        cni: the script behind every CNI claim.
        flex: the script of every volume claim.
        cni_program: its compiled twin, which is started in the place of the script's interpreter; empty without one.
        flex_program: the same for `flex`.
    """

    cni: bytes
    flex: bytes
    cni_program: bytes = b""
    flex_program: bytes = b""

    @classmethod
    def render(cls, *, socket: Path | str, spool: Path | str, source: Path | None = None) -> Self:
        """Read both scripts and point them at one daemon.

        Args:
            socket: the daemon's socket, as the callers of the scripts (runtime, kubelet) see it.
            spool: the folder for deferred DELs, as they see it.
            source: the folder of the scripts; found by itself when None.

        Raises:
            NotFound: the scripts are not where this installation should have them.
            InvalidRequest: a script or a path cannot be used.
        """
        folder = find_scripts() if source is None else source
        texts = [_read(folder / name) for name in (CNI_SCRIPT, FLEX_SCRIPT)]
        plain = (
            render(text, interpreter=default_interpreter(), socket=str(socket), spool=str(spool)) for text in texts
        )
        return cls(*map(compiled_ahead, plain))


def default_interpreter() -> Path:
    """Return the system's Python, or the one behind this process's virtual environment.

    The scripts use C modules alone, so any Python 3 does; the system's own outlives a rebuilt environment.
    """
    return _SYSTEM_PYTHON if os.access(_SYSTEM_PYTHON, os.X_OK) else Path(sys.executable).resolve()


def find_scripts() -> Path:
    """Return the folder that holds both scripts: of the checkout, or of the installed distribution.

    Raises:
        NotFound: they are in none of the places where a checkout or an installation has them.
    """
    looked = list(dict.fromkeys(_candidates()))
    for folder in looked:
        if (folder / CNI_SCRIPT).is_file() and (folder / FLEX_SCRIPT).is_file():
            return folder
    places = ", ".join(map(str, looked))
    raise NotFound(f"the scripts {CNI_SCRIPT} and {FLEX_SCRIPT} are in none of {places}; reinstall nodeplug")


def _candidates() -> Iterator[Path]:
    source_root = Path(__file__).resolve().parents[2]
    if source_root.name == "supervisor":
        yield source_root.parent / "bin"
    try:
        files = distribution("nodeplug").files or []
    except PackageNotFoundError:
        files = []
    # The record of the distribution is right for every scheme of pip but --target, which moves folders afterwards.
    yield from (Path(str(file.locate())).resolve().parent for file in files if file.match(f"*/{_SHARE}/{CNI_SCRIPT}"))
    yield Path(sysconfig.get_path("data")) / _SHARE
    yield Path(sys.prefix) / _SHARE
    yield source_root / _SHARE


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFound(f"there is no script {path}; reinstall nodeplug") from None


def render(text: str, *, interpreter: Path, socket: str, spool: str) -> bytes:
    """Return a script whose shebang, SOCKET and SPOOL lines are rewritten and whose second line is the marker.

    Raises:
        InvalidRequest: the script has no such line, or a path cannot stand in it (execve(2): the kernel cuts a shebang
            at its first blank and at 255 bytes).
    """
    shebang, newline, body = text.partition("\n")
    if not shebang.startswith("#!") or not newline:
        raise InvalidRequest("the script does not begin with an interpreter line; reinstall nodeplug")
    line = _shebang(interpreter, " -IS")
    body = _set(body, "SOCKET", socket)
    if re.search(r"^SPOOL = ", body, re.MULTILINE):
        body = _set(body, "SPOOL", spool)
    return b"\n".join((line, MARKER, body.encode()))


def _set(body: str, name: str, value: str) -> str:
    # JSON's escapes are Python's too, as long as characters beyond ASCII are left as they are.
    try:
        literal = json.dumps(value, ensure_ascii=False)
        literal.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"the path {value!r} is not UTF-8; choose another for {name}") from None
    replaced, count = re.subn(
        rf'^{name} = (b?)"[^"\n]*"', lambda found: f"{name} = {found[1]}{literal}", body, flags=re.MULTILINE
    )
    if count != 1:
        raise InvalidRequest(f"the script has {count} lines `{name} = ...`, expected one; reinstall nodeplug")
    return replaced


def compiled_ahead(script: bytes) -> bytes:
    """Return a rendered script that holds its source and its code, and runs the code where the interpreter knows it.

    The code is for interpreters of this process's bytecode; for any other the script does the same, only slower.
    A script that cannot stand in a raw string, for the sake of an odd path, is returned as it is.
    """
    text = os.fsdecode(script)
    shebang, marker, source = text.split("\n", 2)
    if _QUOTE in text or "\r" in text:
        return script
    code = compile(source, "nodeplug", "exec", dont_inherit=True, optimize=2)
    # Hexadecimal digits are the quickest to read back: half as long as the escapes of a bytes literal.
    digits = marshal.dumps(code, _MARSHAL_VERSION).hex()
    return os.fsencode(_AHEAD.format(head=f"{shebang}\n{marker}", source=source, magic=MAGIC_NUMBER, code=digits))


def program_name(program: bytes) -> str:
    """Return the file name of a compiled twin: hidden, and another one for other bytes."""
    return f"{PROGRAM}{hashlib.sha256(program).hexdigest()[:12]}"


def led_by(script: bytes, program: Path) -> bytes:
    """Return a script whose first line makes the kernel start a compiled twin instead of Python (execve(2)).

    The rest stays Python. The kernel hands Python the *path* of a script, and Python opens it some milliseconds later:
    whatever stands there by then must still be Python, or a call that began before the exchange would fail.

    Raises:
        InvalidRequest: the path of the program cannot stand in a first line.
    """
    return _shebang(program, "") + b"\n" + script.partition(b"\n")[2]


def leader(script: bytes) -> Path:
    """Return what the first line of a script names: Python, or a compiled twin."""
    words = script.partition(b"\n")[0].removeprefix(b"#!").split()
    return Path(os.fsdecode(words[0] if words else b""))


def _shebang(interpreter: Path, options: str) -> bytes:
    line = os.fsencode(f"#!{interpreter}{options}")
    if re.search(r"\s", str(interpreter)) or len(line) > _SHEBANG_LIMIT:
        raise InvalidRequest(
            f"{str(interpreter)!r} cannot be the interpreter: its path has blanks or is too long; use a symlink to it"
        )
    return line


def is_ours(data: bytes) -> bool:
    """Whether the bytes are an entrypoint that nodeplug installed: a script, or its compiled twin."""
    return data.split(b"\n", 2)[1:2] == [MARKER] or (data.startswith(b"\x7fELF") and MARKER in data)
