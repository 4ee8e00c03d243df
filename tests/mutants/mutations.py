"""The small changes that can be made to a source: each is wrong in a way that some test should notice.

Only what stands in functions is changed, and no text for people: docstrings, annotations, decorators, what is logged,
and the messages of errors stay. Everything but the changed bytes stays as it is, so a difference shows one change.
"""

import ast
import json
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

_COMPARED: Final[Mapping[type[ast.cmpop], tuple[str, Sequence[str]]]] = {
    ast.Lt: ("<", ["<=", ">="]),
    ast.LtE: ("<=", ["<", ">"]),
    ast.Gt: (">", [">=", "<="]),
    ast.GtE: (">=", [">", "<"]),
    ast.Eq: ("==", ["!="]),
    ast.NotEq: ("!=", ["=="]),
    ast.Is: ("is", ["is not"]),
    ast.IsNot: ("is not", ["is"]),
    ast.In: ("in", ["not in"]),
    ast.NotIn: ("not in", ["in"]),
}
_CALCULATED: Final[Mapping[type[ast.operator], tuple[str, str]]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
}
_LOGGERS: Final = frozenset({"log", "_log", "LOG", "_LOG", "logger", "logging"})
_LEVELS: Final = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
_OF_TYPES: Final = frozenset({"isinstance", "issubclass", "cast"})
_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, order=True)
class Mutation:
    """One change of one source.

    Attributes:
        line: where it is.
        start: of the replaced bytes.
        end: of the replaced bytes.
        text: what replaces them.
        kind: in a word or two.
        function: the line of the `def` that it is in.
    """

    line: int
    start: int
    end: int
    text: str
    kind: str
    function: int

    def apply(self, source: bytes) -> bytes:
        """Return the changed source."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    def compiles(self, source: bytes) -> bool:
        """Tell whether the changed source is Python."""
        try:
            compile(self.apply(source), "<mutant>", "exec", dont_inherit=True)
        except SyntaxError:
            return False
        return True


def find(source: bytes) -> list[Mutation]:
    """Return every change that can be made to a source, in its order."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    return sorted(set(finder.found))


def functions(tree: ast.AST) -> Iterator[_FunctionNode]:
    """Return the functions and methods of a module, nested ones too."""
    return (node for node in ast.walk(tree) if isinstance(node, _FunctionNode))


class _Finder(ast.NodeVisitor):
    def __init__(self, source: bytes) -> None:
        self.found: list[Mutation] = []
        self._source = source
        self._starts = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]
        self._function: _FunctionNode | None = None

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr | ast.stmt) -> str:
        return self._source[self._start(node) : self._end(node)].decode()

    def _add(self, kind: str, start: int, end: int, text: str) -> None:
        if self._function is not None:
            line = bisect(self._starts, start)
            self.found.append(Mutation(line, start, end, text, kind, self._function.lineno))

    def _replace(self, kind: str, node: ast.expr | ast.stmt, text: str) -> None:
        self._add(kind, self._start(node), self._end(node), text)

    def _swap(self, kind: str, between: tuple[ast.expr, ast.expr], symbol: str, text: str) -> None:
        """Replace an operator, whose place the tree does not tell: it stands between two operands."""
        left, right = self._end(between[0]), self._start(between[1])
        gap = self._source[left:right]
        found = gap.find(symbol.encode())
        if found >= 0 and b"#" not in gap:
            self._add(kind, left + found, left + found + len(symbol), text)

    def _negate(self, test: ast.expr) -> None:
        plain = not isinstance(test, ast.Compare | ast.BoolOp | ast.Constant | ast.UnaryOp)
        if plain:
            self._replace("condition", test, f"not ({self._text(test)})")

    def _rename(self, *nodes: ast.expr | None) -> None:
        """Change texts that are compared or looked up."""
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._replace("text", node, json.dumps(node.value + "X"))

    def _visit_function(self, node: _FunctionNode) -> None:
        outer, self._function = self._function, node
        for one in [*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body]:
            self.visit(one)
        self._function = outer

    visit_FunctionDef = visit_AsyncFunctionDef = _visit_function  # noqa: N815 - named by ast

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self._function = self._function, None
        for one in node.body:
            self.visit(one)
        self._function = outer

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave it: before Python 3.12 the tree does not tell where its parts are."""

    def visit_Expr(self, node: ast.Expr) -> None:
        called = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(called, ast.Call) and not _logs(called):
            self._replace("call removed", node, "pass")
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        if _logs(node):
            return
        types = isinstance(node.func, ast.Name) and node.func.id in _OF_TYPES
        for one in node.args[:1] if types else [node.func, *node.args, *(keyword.value for keyword in node.keywords)]:
            self.visit(one)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace("raise removed", node, "pass")

    def visit_Delete(self, node: ast.Delete) -> None:
        self._replace("deletion removed", node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self._replace("break", node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace("continue", node, "break")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None or self._function is None:
            return
        returns = self._function.returns
        if isinstance(returns, ast.Name) and returns.id == "bool" and not isinstance(node.value, ast.Constant):
            self._replace("returned", node.value, f"not ({self._text(node.value)})")
        elif not isinstance(node.value, ast.Constant) or node.value.value not in {None, True, False}:
            self._replace("returned", node.value, "None")
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._replace("assignment removed", node, "pass")
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            if isinstance(node.target, ast.Attribute | ast.Subscript):
                self._replace("assignment removed", node, "pass")
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        symbol, text = _CALCULATED.get(type(node.op), ("", ""))
        if symbol and not _is_text(node.value):
            self._swap("arithmetic", (node.target, node.value), f"{symbol}=", f"{text}=")
        if isinstance(node.target, ast.Attribute | ast.Subscript):
            self._replace("assignment removed", node, "pass")
        self.visit(node.value)

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    visit_While = visit_IfExp = visit_If  # noqa: N815 - named by ast

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for between, operator in zip(pairwise([node.left, *node.comparators]), node.ops, strict=True):
            symbol, texts = _COMPARED[type(operator)]
            for text in texts:
                self._swap("comparison", between, symbol, text)
        self._rename(node.left, *node.comparators)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        symbol, text = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for between in pairwise(node.values):
            self._swap("and, or", between, symbol, text)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub):
            length = len("not" if isinstance(node.op, ast.Not) else "-")
            self._add("sign", self._start(node), self._start(node) + length, "")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        symbol, text = _CALCULATED.get(type(node.op), ("", ""))
        if symbol and not any(map(_is_text, (node.left, node.right))):
            self._swap("arithmetic", (node.left, node.right), symbol, text)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace("constant", node, str(not node.value))
        elif isinstance(node.value, int):
            self._replace("constant", node, str(node.value + 1))
            if node.value == 1:
                self._replace("constant", node, "0")
        elif isinstance(node.value, float):
            self._replace("constant", node, str(node.value * 2 or 1.0))

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._rename(node.slice)
        if isinstance(node.slice, ast.Slice):
            for bound in (node.slice.lower, node.slice.upper):
                if bound is not None:
                    self._replace("bound removed", bound, "")
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        self._rename(*node.keys)
        self.generic_visit(node)


def _logs(node: ast.Call) -> bool:
    """Tell whether a call writes to the log: `LOG.info(...)`, also `self._log.info(...)`."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in _LEVELS:
        return False
    owner = node.func.value
    name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    return name in _LOGGERS


def _is_text(node: ast.expr) -> bool:
    """Tell of texts, which nobody subtracts, and of None, which stands in types."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str | bytes))
    )
