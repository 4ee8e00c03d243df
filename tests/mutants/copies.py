"""A copy of the checkout, with a Python environment of its own, in which sources are changed and tests run.

Nobody's working tree is touched, and every process of a test imports the copy: its environment is that of the checkout,
copied, with its paths replaced.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

from tests.mutants import instrumented

_HERE: Final = Path(__file__).parent
_MARK: Final = "NODEPLUG_MUTANTS"
"""The variable in which each process of the tests has the folder of the copy."""
_SOURCES: Final = ("supervisor", "plugins")
_LONG_AGO: Final = 1_000_000_000


class Copy:
    """One copy of a checkout.

    Args:
        folder: becomes the copy; other users must be able to read it.
        origin: the checkout.
        workers: how many processes run tests.

    Attributes:
        root: of the copy.
        notes: a file with a line of JSON for each test of the last run.
        output: a file with what pytest printed.
        parallel: the options with which pytest uses all workers.
    """

    def __init__(self, folder: Path, origin: Path, workers: int) -> None:
        self.root = folder
        self._origin = origin
        self._packages = Path()
        self._instrumented = folder.with_name("instrumented")
        self.notes = folder.with_name("notes.jsonl")
        self.parallel = ("-n", str(workers), "--dist", "loadgroup")
        self.output = folder.with_name("output")

    def make(self) -> None:
        """Bring the copy to the last commit of the checkout."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._end_marked()
        self._git("init", "-q")
        self._git("fetch", "-q", "--depth", "1", f"file://{self._origin}", "HEAD")
        self._git("checkout", "-q", "-f", "--detach", "FETCH_HEAD")
        self._git("clean", "-qfd")
        stamp = Path(".venv", ".installed")
        if not (self.root / stamp).exists() or _changed(self.root / stamp) != _changed(self._origin / stamp):
            self._copy_environment()
        self._packages = next((self.root / ".venv" / "lib").glob("python3*/site-packages"))
        for name in ("seen", "noting"):
            shutil.copyfile(_HERE / f"{name}.py", self._packages / f"nodeplug_{name}.py")
        if self._instrumented.exists():  # a run was interrupted
            self.plain()

    def objects(self, *paths: str) -> Mapping[str, str]:
        """Return what git has below some paths: the hash of each file's content."""
        lines = self._git("ls-tree", "-r", "HEAD", *paths).splitlines()
        return {path: entry.split()[2] for entry, _, path in (line.partition("\t") for line in lines)}

    def instrument(self, numbers: Mapping[str, Mapping[int, int]]) -> None:
        """Let functions tell that they are executed.

        Args:
            numbers: by the path of a source and the line of a `def`.
        """
        self._instrumented.touch()
        self._remove_compiled()
        for path, of_file in numbers.items():
            instrumented.write(self.root / path, of_file)

    def plain(self) -> None:
        """Let functions tell nothing."""
        self._remove_compiled()
        python = self.root / ".venv" / "bin" / "python"
        subprocess.run([python, "-m", "compileall", "-q", *_SOURCES], cwd=self.root, check=True)
        self._instrumented.unlink(missing_ok=True)

    def write(self, path: str, content: bytes) -> None:
        """Change a source. Python knows compiled modules by time and size: each content has a time of its own."""
        (self.root / path).write_bytes(content)
        time = _LONG_AGO + crc32(content) % _LONG_AGO // 2
        os.utime(self.root / path, (time, time))

    def seen(self) -> Iterable[tuple[str, str, int]]:
        """Return the suite and the file of tests that executed a function, and the function's number."""
        with self._log.open(encoding="utf-8") as lines:
            for line in set(lines):
                suite, file, number = line.split()
                yield suite, file, int(number)

    def test(self, files: Sequence[str], options: Sequence[str], timeout: float) -> int | None:
        """Run tests and end all that they started; return pytest's exit status, None for a run that took too long.

        What each test came to is in the file `notes`.

        Args:
            files: of tests, or single tests.
            options: more words for pytest.
            timeout: in seconds.
        """
        self._empty()
        command = [".venv/bin/pytest", "-q", "-p", "no:cacheprovider", "-p", "nodeplug_noting", *options, *files]
        environment = {**os.environ, _MARK: str(self.root), "NODEPLUG_NOTES": str(self.notes)}
        with self.output.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self.root, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                return process.wait(timeout)
            except subprocess.TimeoutExpired:
                return None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                self._end_marked()

    @property
    def _log(self) -> Path:
        return self._packages / "nodeplug_seen.py.log"

    def _empty(self) -> None:
        self.notes.write_bytes(b"")
        self._log.write_bytes(b"")
        self._log.chmod(0o666)  # plugins run as other users
        tests = self._packages / "nodeplug_seen.py.tests"
        shutil.rmtree(tests, ignore_errors=True)
        tests.mkdir()

    def _remove_compiled(self) -> None:
        for name in _SOURCES:
            instrumented.remove(self.root / name)

    def _copy_environment(self) -> None:
        target = self.root / ".venv"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self._origin / ".venv", target, symlinks=True)
        old, new = (str(path).encode() for path in (self._origin, self.root))
        for pattern in ("bin/*", "pyvenv.cfg", "lib/*/site-packages/*.pth", "lib/*/site-packages/*/direct_url.json"):
            for path in target.glob(pattern):
                if path.is_file() and not path.is_symlink() and old in (content := path.read_bytes()):
                    path.write_bytes(content.replace(old, new))

    def _end_marked(self) -> None:
        """Kill what is left of a run, also what has left its session."""
        mark = f"{_MARK}={self.root}".encode()
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (place / "environ").read_bytes().split(b"\0"):
                    os.kill(int(place.name), signal.SIGKILL)

    def _git(self, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=self.root, check=True, capture_output=True, text=True).stdout


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns
