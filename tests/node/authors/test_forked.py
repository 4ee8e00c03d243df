"""What is forked from a process that has imported the daemon, and what it is given."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.ended import has_ended

from nodeplug.contract.errors import NotReady
from nodeplug.testing import ScratchNode, forked, namespaces, rig
from nodeplug.testing.scratch_cni import new_netns, run_in
from nodeplug.testing.waiting import until

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(forked.search_path())}
TELL = """
import json, os, signal, sys, threading
print(json.dumps({
    "argv": sys.argv[1:], "cwd": os.getcwd(), "network": os.readlink("/proc/self/ns/net"),
    "stdin": sys.stdin.read(), "descriptors": sorted(os.listdir("/proc/self/fd")), "word": os.environ.get("WORD"),
    "left": os.environ.get("LEFT"), "interrupted": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "threads": threading.active_count(), "daemon": "nodeplug.daemon" in sys.modules,
    "grpc": "grpc" in sys.modules, "name": __name__,
}))
"""

FIND = """
import importlib.util, json, os, sys
print(json.dumps({"parent": os.getppid(), "found": [one for one in sys.argv[1:] if importlib.util.find_spec(one)]}))
"""

PLACE = """
import os
print(*(os.stat(path).st_ino for path in ("/proc/self/ns/mnt", "/proc/self/ns/net", "/proc/self/ns/uts", "/")))
"""


class Forks:
    """Scripts that are forked in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stdout = folder / "stdout"
        self.stderr = folder / "stderr"

    def start(self, script: str, *arguments: str, stdin: str = "", **env: str) -> forked.Forked:
        (self.folder / "script.py").write_text(script)
        (self.folder / "stdin").write_text(stdin)
        return forked.start(
            str(self.folder / "script.py"),
            arguments,
            {**ENV, **env},
            stdin=self.folder / "stdin",
            stdout=self.stdout,
            stderr=self.stderr,
        )

    def told(self, *arguments: str, **more: str) -> dict[str, Any]:
        assert self.start(TELL, *arguments, **more).wait(60) == 0, self.stderr.read_text()
        return dict(json.loads(self.stdout.read_text()))


@pytest.fixture
def forks(tmp_path: Path) -> Forks:
    return Forks(tmp_path)


def test_it_has_the_arguments_and_streams_and_environment_of_a_process_that_was_executed(forks: Forks) -> None:
    told = forks.told("serve", "--root", "x", stdin="a word", WORD="said")
    assert (told["argv"], told["stdin"], told["word"]) == (["serve", "--root", "x"], "a word", "said")
    assert (told["cwd"], told["name"], told["interrupted"], told["threads"]) == ("/", "__main__", True, 1)


def test_it_has_imported_the_daemon_already(forks: Forks) -> None:
    assert forks.told()["daemon"]


def test_it_has_no_descriptor_of_the_process_that_forked_it(forks: Forks) -> None:
    assert forks.told()["descriptors"] == ["0", "1", "2", "3"]  # 3 is the folder that is being listed


def test_a_variable_of_one_is_nothing_to_the_next(forks: Forks) -> None:
    forks.told(LEFT="behind")
    forks.stdout.unlink()
    assert forks.told()["left"] is None


def test_it_begins_in_the_network_of_the_thread_that_asked(forks: Forks) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    netns = new_netns()
    process = run_in(netns, lambda: forks.start(TELL))
    assert process.wait(60) == 0, forks.stderr.read_text()
    network = json.loads(forks.stdout.read_text())["network"]
    assert network == f"net:[{os.fstat(netns.fd).st_ino}]"
    assert network != os.readlink("/proc/self/ns/net")
    netns.close()


def test_what_a_module_imports_that_is_started_many_times_is_imported_once(forks: Forks) -> None:
    env = {**ENV, "PYTHONPATH": f"{forks.folder}{os.pathsep}{ENV['PYTHONPATH']}"}
    (forks.folder / "heavy.py").write_text("import os\nIMPORTED_BY = os.getpid()\n")
    (forks.folder / "light.py").write_text(
        "import heavy, os, sys\n"
        "if __name__ == '__main__':\n    print(sys.argv[1], heavy.IMPORTED_BY == os.getppid(), flush=True)\n"
    )
    for word in ("one", "two"):
        process = forked.start("light", [word], env, stdout=forks.stdout, stderr=forks.stderr, repeated=True)
        assert process.wait(60) == 0, forks.stderr.read_text()
    assert forks.stdout.read_text().splitlines() == ["one True", "two True"]


def test_its_exit_status_is_told(forks: Forks) -> None:
    process = forks.start("import sys; sys.exit(7)")
    assert (process.wait(60), process.poll(), process.returncode) == (7, 7, 7)


def test_at_its_end_it_waits_for_its_threads_and_then_does_what_it_has_registered(forks: Forks) -> None:
    script = """
import atexit, threading, time
atexit.register(print, "registered")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
"""
    assert forks.start(script).wait(60) == 0
    assert forks.stdout.read_text() == "thread\nregistered\n"


def test_what_it_says_instead_of_a_status_stands_in_its_stderr(forks: Forks) -> None:
    assert forks.start("raise SystemExit('a sentence')").wait(60) == 1
    assert forks.stderr.read_text() == "a sentence\n"


def test_it_runs_until_a_signal_ends_it(forks: Forks) -> None:
    process = forks.start("import time; time.sleep(1000)")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    process.kill()  # nobody is there any more


def test_a_module_level_mistake_stands_in_its_stderr(forks: Forks) -> None:
    assert forks.start("import nothing_like_it").wait(60) == 1
    assert "nothing_like_it" in forks.stderr.read_text()


@pytest.mark.whole
def test_daemons_end_with_the_tests_that_started_them(forks: Forks) -> None:
    tests = f"""
import os, time
from pathlib import Path
from nodeplug.testing import forked
Path({str(forks.folder / "sleep.py")!r}).write_text("import time; time.sleep(1000)")
out = Path({str(forks.folder / "out")!r})
print(forked.start({str(forks.folder / "sleep.py")!r}, [], dict(os.environ), stdout=out, stderr=out).pid, flush=True)
time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", tests], stdout=subprocess.PIPE, env=ENV, text=True) as pytest_run:
        assert pytest_run.stdout is not None
        daemon = int(pytest_run.stdout.readline())
        assert not has_ended(daemon)
        pytest_run.kill()
    until(lambda: has_ended(daemon))


@pytest.mark.whole
def test_a_forked_daemon_serves_and_ends_as_an_executed_one(tmp_path: Path) -> None:
    ended = {}
    for fork in (False, True):
        root = tmp_path / str(fork)
        root.mkdir()
        with ScratchNode(root, "[plugins.tmpfs]\n", fork=fork, env={"PYTHONPATH": ENV["PYTHONPATH"]}) as node:
            plugins = node.status()["plugins"]
            ended[fork] = ([(row["name"], row["state"], row["claims"]) for row in plugins], node.stop())
    assert ended[True] == ended[False] == ([("tmpfs", "running", ["volume:nodeplug/tmpfs"])], 0)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_the_nodes_of_all_tests_import_the_daemon_once() -> None:
    parents = []
    for _ in range(2):
        with rig.scratch_node("[plugins.tmpfs]\n") as node:
            first = parent_of(node.pid)
            node.kill()
            node.start()
            parents += [first, parent_of(node.pid)]
    assert len(set(parents)) == 1
    assert parents[0] != os.getpid()


def test_one_process_forks_for_every_pythonpath_that_leads_to_the_same_nodeplug(forks: Forks) -> None:
    parents = set()
    for name in ("one", "two"):
        (forks.folder / name).mkdir()
        (forks.folder / name / f"only_{name}.py").touch()
        forks.stdout.unlink(missing_ok=True)
        env = {"PYTHONPATH": f"{forks.folder / name}{os.pathsep}{ENV['PYTHONPATH']}"}
        assert forks.start(FIND, "only_one", "only_two", **env).wait(60) == 0
        told = json.loads(forks.stdout.read_text())
        assert told["found"] == [f"only_{name}"]
        parents.add(told["parent"])
    assert len(parents) == 1


def test_the_process_that_forks_lives_in_no_network_of_a_test() -> None:
    with rig.scratch_node("[plugins.tmpfs]\n") as node:
        own, server = (os.readlink(f"/proc/{pid}/ns/net") for pid in (node.pid, parent_of(node.pid)))
        assert os.geteuid() != 0 or own != server


@pytest.mark.whole
def test_processes_that_fork_do_not_pile_up(forks: Forks) -> None:
    for name in ("A", "B"):
        process = forks.start("import time; time.sleep(1000)", PYTHONHASHSEED=str(ord(name)))
        server = parent_of(process.pid)
        process.kill()
        process.wait(60)
        if name == "A":
            former = server
    assert has_ended(former)
    assert not has_ended(server)


@pytest.mark.node
@pytest.mark.programs("unshare")
def test_what_is_forked_beside_a_process_is_in_its_namespaces_and_its_root(tmp_path: Path) -> None:
    (tmp_path / "place.py").write_text(PLACE)
    words = [*namespaces.command(network=True, host_name=True), "sleep", "infinity"]
    with subprocess.Popen(words) as other:
        own = [f"/proc/{other.pid}/{name}" for name in ("ns/mnt", "ns/net", "ns/uts", "root/")]
        try:
            until(lambda: Path(f"/proc/{other.pid}/comm").read_text() == "sleep\n")
            said = forked.run(str(tmp_path / "place.py"), (), ENV, beside=other.pid).stdout
            assert said.split() == [str(os.stat(path).st_ino) for path in own]  # noqa: PTH116
        finally:
            other.kill()


def test_a_process_that_has_ended_is_told_and_leaves_other_children_alone(forks: Forks) -> None:
    child = forks.start("import time; time.sleep(1000)")
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(NotReady, match="the process beside which to start another one has ended"):
        forked.run("nodeplug", ("version",), ENV, beside=ended.pid)
    assert child.poll() is None
    child.kill()
    assert child.wait(60) == -signal.SIGKILL


def test_a_command_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(1000)")
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run(str(tmp_path / "hangs.py"), (), ENV, timeout=0.1)


def test_a_command_is_told_with_its_status_and_both_streams(tmp_path: Path) -> None:
    done = ScratchNode(tmp_path, "[plugins.tmpfs]\n").run("check-config")
    assert (done.returncode, done.stderr) == (0, "")
    assert "tmpfs" in done.stdout
    done = ScratchNode(tmp_path, "x = = 1\n").run("check-config")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nodeplug.toml" in done.stderr


@pytest.mark.whole
@pytest.mark.parametrize("own", [True, False])
def test_a_command_is_executed_where_a_process_that_forks_would_serve_it_alone(own: bool, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "sitecustomize.py").write_text("import sys\nsys.stderr.write(f'{sys.orig_argv}')\n")
    env = {"PYTHONPATH": f"{tmp_path / 'code'}:{ENV['PYTHONPATH']}"} if own else {}
    said = ScratchNode(tmp_path, "", env=env).run("check-config").stderr
    assert ("check-config" in said) is own
