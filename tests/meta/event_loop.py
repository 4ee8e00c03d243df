"""Which functions run on the event loop, and which of their calls can block, as the source tells.

Owns: the syntax tree of the supervisor, functions found from those that call them, and the names that block.
Refuses: judgement: `test_event_loop` says which calls are allowed.

On the loop runs every `async def`, every function given to the loop as a callback, and whatever these call by a name
that the source resolves: a function of the module or imported from nodeplug, a method or property of the class
(`self.`), and a method that a class of the same module has. What is only handed on, to a lane or a thread, is not
called here.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

CALLBACKS: Final = frozenset(
    {
        "add_done_callback",
        "add_reader",
        "add_signal_handler",
        "add_writer",
        "call_at",
        "call_later",
        "call_soon",
        "call_soon_threadsafe",
    }
)
"""Methods whose arguments the loop calls."""
_BUILTINS: Final = frozenset({"input", "open"})
_OS: Final = """
    access chmod chown copy_file_range fdatasync fsync fwalk getxattr lchown link listdir listxattr lstat makedirs mkdir
    mkfifo mknod open readlink remove removedirs removexattr rename renames replace rmdir scandir sendfile setxattr stat
    statvfs symlink sync system truncate unlink utime waitpid walk
    path.exists path.getmtime path.getsize path.isdir path.isfile path.islink path.ismount path.lexists path.realpath
"""
_OTHERS: Final = """
    time.sleep fcntl.flock fcntl.lockf socket.create_connection socket.getaddrinfo nodeplug.process.umask.with_umask
"""
_FUNCTIONS: Final = frozenset([*(f"os.{name}" for name in _OS.split()), *_OTHERS.split()])
_MODULES: Final = frozenset({"glob", "shutil", "subprocess", "tempfile"})
_PATH_NAMES: Final = """
    chmod exists expanduser glob group hardlink_to is_block_device is_char_device is_dir is_fifo is_file is_junction
    is_mount is_socket is_symlink iterdir lchmod lstat mkdir owner read_bytes read_text readlink rename rglob rmdir
    samefile stat symlink_to touch unlink write_bytes write_text
"""
_PATH: Final = frozenset([*_PATH_NAMES.split(), "add_watch"])
"""Methods that pathlib alone has, of all the classes that are used here, and inotify's, which looks up a path, too."""
_COMMON: Final = frozenset({"add", "close", "get", "pop", "read", "run", "set", "stop", "write"})
"""Names of methods that tell nothing about the class."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Place:
    """A function: its module, and its name in there, such as `Runner.call` or `watch.<locals>.look`."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(slots=True)
class Body:
    """What one function does itself.

    Attributes:
        line: where it begins.
        runs_on_loop: it is `async def`, or is given to the loop as a callback.
        calls: functions that the source resolves.
        blocking: line and name of each call that can block.
    """

    line: int
    runs_on_loop: bool = False
    calls: set[Place] = field(default_factory=set)
    blocking: list[tuple[int, str]] = field(default_factory=list)


@dataclass(slots=True)
class Source:
    """The functions of a source root, by place."""

    bodies: dict[Place, Body] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path, package: str) -> "Source":
        """Read every module of a package."""
        made = cls()
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            made.add(module, path.read_text(encoding="utf-8"))
        return made

    def add(self, module: str, text: str) -> None:
        """Read one module."""
        tree = ast.parse(text)
        _Reader(module, tree, self.bodies).visit(tree)

    def blocking(self, modules: Iterable[str]) -> Iterator[tuple[tuple[Place, ...], int, str]]:
        """Find calls on the loop that can block.

        Args:
            modules: those that the loop owns.

        Yields:
            The way from the function that runs on the loop to the one that blocks, and the line and the name of the
            call in there.
        """
        owned = set(modules)
        for place, body in list(self.bodies.items()):
            if place.module in owned and body.runs_on_loop:
                yield from self._below(place, (), {place})

    def _below(
        self, place: Place, way: tuple[Place, ...], seen: set[Place]
    ) -> Iterator[tuple[tuple[Place, ...], int, str]]:
        body, here = self.bodies[place], (*way, place)
        for line, name in body.blocking:
            yield here, line, name
        for callee in sorted(body.calls, key=str):
            found = self.bodies.get(callee)
            # What is `async` or a callback has a walk of its own, if the loop owns it.
            if found is not None and callee not in seen and not found.runs_on_loop:
                seen.add(callee)
                yield from self._below(callee, here, seen)


class _Reader(ast.NodeVisitor):
    """Reads one module."""

    def __init__(self, module: str, tree: ast.Module, bodies: dict[Place, Body]) -> None:
        self._module = module
        self._bodies = bodies
        self._scope: list[str] = []
        self._class: list[str] = []
        self._now: Body | None = None
        self._names = dict(_imports(tree))
        self._methods = dict(_methods(tree))
        self._properties = {name for names in self._methods.values() for name, is_property in names if is_property}

    # --- where we are

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.append(node.name)
        self._class.append(".".join(self._scope))
        self._visit_aside(node)
        self._class.pop()
        self._scope.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: Function) -> None:
        self._scope.append(node.name)
        place = Place(self._module, ".".join(self._scope))
        body = self._body(place)
        body.line = node.lineno
        body.runs_on_loop |= isinstance(node, ast.AsyncFunctionDef)
        before, self._now = self._now, body
        self._scope.append("<locals>")
        for statement in node.body:
            self.visit(statement)
        self._scope.pop()
        self._now = before
        self._scope.pop()

    def _visit_aside(self, node: ast.AST) -> None:
        before, self._now = self._now, None
        self.generic_visit(node)
        self._now = before

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_aside(node)  # made here; whoever gets it calls it

    def _body(self, place: Place) -> Body:
        return self._bodies.setdefault(place, Body(0))

    # --- what is done there

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self._now is not None:
            self._now.calls |= {found for found in self._places(node) if found.name in self._properties}
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _last(node.func) in CALLBACKS:
            for argument in node.args:
                for called in self._places(argument):
                    self._body(called).runs_on_loop = True
        if self._now is not None:
            if (name := self._blocking(node.func)) is not None:
                self._now.blocking.append((node.lineno, name))
            else:
                self._now.calls |= set(self._places(node.func))
        self.generic_visit(node)

    def _blocking(self, called: ast.expr) -> str | None:
        name = self._dotted(called)
        if (name in _BUILTINS and name not in self._names) or name in _FUNCTIONS or name.partition(".")[0] in _MODULES:
            return name
        of_a_path = isinstance(called, ast.Attribute) and called.attr in _PATH
        # os.access and the like have been seen above; a function of a module of ours is followed into it.
        if not of_a_path or self._names.get(_first(called)) or self._own_method(called):
            return None
        return f"Path.{_last(called)}"

    def _dotted(self, node: ast.expr) -> str:
        """Return a name as it is outside of this module: `os.stat` whatever `os` is called here."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            return f"{self._dotted(node.value)}.{node.attr}"
        return ""

    def _places(self, node: ast.expr) -> list[Place]:
        """Return the functions that a name can mean: several where classes of the module share the name of a method."""
        if isinstance(node, ast.Name):
            return [self._by_name(node.id)]
        if not isinstance(node, ast.Attribute):
            return []
        if (own := self._own_method(node)) is not None:
            return [own]
        module, _, name = self._dotted(node).rpartition(".")
        if module.startswith("nodeplug."):
            return [Place(module, name)]
        named = [] if node.attr in _COMMON else self._methods.get(node.attr, [])
        return [Place(self._module, name) for name, _ in named]

    def _by_name(self, name: str) -> Place:
        module, _, last = self._names.get(name, "").rpartition(".")
        if last:
            return Place(module, last)
        inner = Place(self._module, ".".join([*self._scope, name]))
        return inner if self._now is not None and inner in self._bodies else Place(self._module, name)

    def _own_method(self, node: ast.expr) -> Place | None:
        if not self._class or not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            return None
        return Place(self._module, f"{self._class[-1]}.{node.attr}") if node.value.id in {"self", "cls"} else None


def _methods(tree: ast.Module) -> Iterator[tuple[str, list[tuple[str, bool]]]]:
    """Yield the name of each method, with the classes that have it and whether it is a property there."""
    found: dict[str, list[tuple[str, bool]]] = {}
    for cls in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in (node for node in cls.body if isinstance(node, Function)):
            is_property = any(_last(one) in {"property", "cached_property"} for one in node.decorator_list)
            found.setdefault(node.name, []).append((f"{cls.name}.{node.name}", is_property))
    yield from found.items()


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each imported name with what it is called where it comes from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                yield (one.asname, one.name) if one.asname else (one.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _first(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
