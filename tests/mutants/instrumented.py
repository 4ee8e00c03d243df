"""Byte code in which each function first tells that it is executed, while the sources stay as they are.

It is put where Python looks for compiled modules, marked as not to be compared with the source (PEP 552): every process
that imports the module with this version of Python gets it, and lines and sources are those of the file.
"""

import ast
import importlib.util
import marshal
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Final

from tests.mutants.mutations import functions

_UNCHECKED: Final = 0b01
_FIRST: Final = """
try:
    from nodeplug_seen import seen as __seen__
except ImportError:
    def __seen__(_):
        pass
"""


def instrument(source: bytes, file: str, numbers: Mapping[int, int]) -> CodeType:
    """Compile a source whose functions call `seen` first.

    Args:
        source: of a module.
        file: its name.
        numbers: of functions, by the line of their `def`.
    """
    tree = ast.parse(source)
    for function in functions(tree):
        call = ast.parse(f"__seen__({numbers[function.lineno]})").body[0]
        function.body.insert(int(ast.get_docstring(function) is not None), _moved(call, function.lineno))
    before = [_is_before_code(number, node) for number, node in enumerate(tree.body)]
    place = before.index(False) if False in before else len(before)
    tree.body[place:place] = [_moved(node, 1) for node in ast.parse(_FIRST).body]
    return compile(tree, file, "exec", dont_inherit=True)


def _is_before_code(number: int, node: ast.stmt) -> bool:
    docstring = number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def _moved(statement: ast.stmt, line: int) -> ast.stmt:
    for node in ast.walk(statement):
        if isinstance(node, ast.expr | ast.stmt):
            node.lineno = node.end_lineno = line
            node.col_offset = node.end_col_offset = 0
    return ast.fix_missing_locations(statement)


def write(path: Path, numbers: Mapping[int, int]) -> None:
    """Compile a file so, and put the byte code where Python looks for it."""
    source = path.read_bytes()
    code = marshal.dumps(instrument(source, str(path), numbers))
    cached = Path(importlib.util.cache_from_source(str(path)))
    cached.parent.mkdir(exist_ok=True)
    head = importlib.util.MAGIC_NUMBER + _UNCHECKED.to_bytes(4, "little") + importlib.util.source_hash(source)
    cached.write_bytes(head + code)


def remove(folder: Path) -> None:
    """Remove all byte code below a folder."""
    for cache in [*folder.rglob("__pycache__")]:
        shutil.rmtree(cache)
