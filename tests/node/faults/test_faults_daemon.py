"""What people and programs do to a running daemon, and what plugins do to its process."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nodeplug.exec.frame import Frame, Reply

Make = Callable[..., Any]

# --- its files --------------------------------------------------------------------------------------------------


def test_a_removed_exec_socket_is_made_anew(make_node: Make) -> None:
    node = make_node()
    node.scratch.paths.exec_socket.unlink()
    node.until(node.scratch.paths.exec_socket.exists)
    assert node.scratch.paths.exec_socket.stat().st_mode & 0o777 == 0o600
    assert node.cni().status == 0
    node.until(lambda: sum("has been recreated" in line for line in node.fresh) == 1)


def test_a_call_that_runs_while_the_socket_is_removed_is_answered(make_node: Make) -> None:
    node = make_node()
    with ThreadPoolExecutor(1) as pool:
        adding = pool.submit(node.cni, do="hold")
        node.until((node.notes() / "held-c1").exists)
        node.scratch.paths.exec_socket.unlink()
        node.until(node.scratch.paths.exec_socket.exists)
        (node.notes() / "go-c1").touch()
        assert adding.result().status == 0


def test_a_removed_run_folder_is_made_anew(make_node: Make) -> None:
    node = make_node()
    assert node.cni().status == 0
    shutil.rmtree(node.scratch.paths.run)
    node.until(lambda: node.scratch.paths.exec_socket.exists() and node.notes().exists())
    assert node.cni().status == 0
    assert node.attachments() == {"c1"}
    assert node.cni("DEL").status == 0


def test_a_socket_that_cannot_be_made_anew_is_told_once_and_made_when_it_can(make_node: Make) -> None:
    node = make_node()
    run, aside = node.scratch.paths.run, node.scratch.root / "aside"
    run.rename(aside)
    run.touch()
    node.until(lambda: "cannot be recreated" in node.scratch.log)
    run.unlink()
    node.until(node.scratch.paths.exec_socket.exists)
    assert node.cni().status == 0
    assert node.scratch.log.count("cannot be recreated") == 1


def test_a_configuration_that_is_deleted_keeps_what_runs_until_it_is_back(make_node: Make) -> None:
    node = make_node(faulty={})
    node.scratch.config_path.unlink()
    node.until(lambda: "configuration" in node.scratch.status()["reasons"])
    assert "does not exist" in node.scratch.status()["reasons"]["configuration"]
    assert node.cni().status == 0
    node.configure(faulty={}, second={})
    node.until(lambda: node.scratch.status()["ready"])
    assert node.plugin("second")["state"] == "running"


def test_a_configuration_folder_that_is_replaced_is_still_followed(make_node: Make) -> None:
    node = make_node(faulty={})
    folder = node.scratch.config_path.parent
    folder.rename(folder.with_name("former"))
    node.configure(faulty={}, second={})
    node.until(lambda: len(node.scratch.status()["plugins"]) == 2)


def test_a_storm_of_sighup_changes_nothing(make_node: Make) -> None:
    node = make_node()
    for _ in range(500):
        os.kill(node.scratch.pid, signal.SIGHUP)
    node.configure(faulty={}, last={})
    for _ in range(500):
        os.kill(node.scratch.pid, signal.SIGHUP)
    node.until(lambda: {plugin["name"] for plugin in node.scratch.status()["plugins"]} == {"faulty", "last"})
    assert node.cni().status == 0


# --- its end ----------------------------------------------------------------------------------------------------


@pytest.mark.whole  # calls get 5 s at the end
def test_sigterm_during_a_call_that_hangs_ends_it_with_status_0(make_node: Make) -> None:
    node = make_node()
    with ThreadPoolExecutor(1) as pool:
        adding = pool.submit(node.cni, do="block")
        node.until((node.notes() / "blocked-c1").exists)
        assert node.scratch.stop() == 0
        assert adding.result().code == 11
    assert "Traceback" not in node.scratch.log


def test_a_thread_that_a_plugin_left_running_does_not_keep_the_process(make_node: Make) -> None:
    node = make_node()
    assert node.cni(do="thread").status == 0
    assert node.scratch.stop() == 0
    assert "left running" in node.scratch.log


# --- a plugin's life --------------------------------------------------------------------------------------------


@pytest.mark.whole  # plugins get 5 s to start
def test_plugins_that_block_while_they_are_loaded_hold_up_neither_the_others_nor_the_end(make_node: Make) -> None:
    node = make_node(faulty={"made": "block"}, mute={"claims": "block"}, other={})
    node.until(lambda: node.plugin("other")["state"] == "running")
    assert [node.plugin(name)["state"] for name in ("faulty", "mute")] == ["starting", "starting"]
    assert node.scratch.stop() == 0


def test_plugins_that_fail_while_they_are_loaded_are_refused_alone(make_node: Make) -> None:
    faults = {
        f"{where}-{fault}": {where: fault}
        for where in ("made", "claims")
        for fault in ("raise", "exit", "unprintable", "mute")
    }
    node = make_node(**faults, other={})
    assert {name: node.plugin(name)["state"] for name in faults} == dict.fromkeys(faults, "refused")
    assert all(node.plugin(name)["reason"] for name in faults)
    assert node.plugin("other")["state"] == "running"


def test_an_async_hook_is_refused_at_load_and_named(make_node: Make) -> None:
    node = make_node(faulty={"cls": "Asynchronous"}, other={})
    assert "cni_add is `async def`" in node.plugin("faulty")["reason"]
    assert node.plugin("other")["state"] == "running"
    assert node.scratch.log.count("is `async def`") == 1


def test_the_second_owner_of_a_claim_is_refused_naming_both(make_node: Make) -> None:
    node = make_node(first={"claim": "same"}, second={"claim": "same"})
    reason = node.plugin("second")["reason"]
    assert "'first'" in reason
    assert "'second'" in reason
    assert node.plugin("first")["state"] == "running"


def test_a_plugin_that_is_not_installed_is_refused_naming_those_that_are(make_node: Make) -> None:
    node = make_node()
    node.scratch.configure("[plugins.nosuch]\n[plugins.tmpfs]\n")
    node.until(lambda: len(node.scratch.status()["plugins"]) == 2)
    assert "no plugin 'nosuch' is installed; installed: bandwidth, bridge" in node.plugin("nosuch")["reason"]
    assert node.plugin("tmpfs")["state"] == "running"


def test_a_health_that_hangs_is_told_and_does_not_stop_calls(make_node: Make) -> None:
    node = make_node(faulty={"health": "block", "deadline": {"health": "100ms"}})
    answers = [node.cni("STATUS", cniVersion="1.1.0") for _ in range(6)]
    assert {answer.code for answer in answers} == {50}
    assert not node.plugin("faulty")["quarantined"]
    assert node.cni().status == 0


# --- callers ----------------------------------------------------------------------------------------------------


def converse(node: Any, data: bytes, fds: tuple[int, ...] = ()) -> Reply:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(node.scratch.paths.exec_socket))
        socket.send_fds(peer, [data], fds)
        peer.shutdown(socket.SHUT_WR)
        return Reply.decode(b"".join(iter(lambda: peer.recv(1 << 16), b"")))


def test_clients_that_say_nothing_cost_others_nothing(make_node: Make) -> None:
    node = make_node()
    silent = [socket.socket(socket.AF_UNIX) for _ in range(100)]
    try:
        for number, peer in enumerate(silent):
            peer.connect(str(node.scratch.paths.exec_socket))
            peer.sendall(b"NPX1"[: number % 5])
        assert node.cni().status == 0
        assert node.scratch.status()["ready"]
    finally:
        for peer in silent:
            peer.close()


def test_junk_on_the_socket_is_one_line_in_the_log(make_node: Make) -> None:
    node = make_node()
    node.mark()
    reply = converse(node, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert reply.exit == 1
    assert b"not a nodeplug frame" in reply.stderr
    node.failure()


STRANGER = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect(sys.argv[1])
    peer.sendall(bytes.fromhex(sys.argv[2]))
    sys.stdout.buffer.write(b"".join(iter(lambda: peer.recv(65536), b"")))
"""


def open_to_all(node: Any) -> None:
    for folder in (*node.scratch.paths.exec_socket.parents,)[:-2]:
        folder.chmod(folder.stat().st_mode | 0o055)


def test_a_peer_that_is_not_root_is_refused_and_logged_once(make_node: Make) -> None:
    node = make_node()
    open_to_all(node)
    node.scratch.paths.exec_socket.chmod(0o666)
    node.mark()
    frame = Frame("cni", "faulty", (), node.env(), b"{}").encode().hex()
    for _ in range(3):
        command = ["/usr/bin/python3", "-I", "-c", STRANGER, str(node.scratch.paths.exec_socket), frame]
        done = subprocess.run(command, capture_output=True, check=True)
        assert b"only root may call nodeplug; the caller has user id 65534" in done.stdout
    assert "user 65534" in node.failure()


def test_status_for_a_user_who_is_not_root_says_so(make_node: Make, other_user: Any) -> None:
    node = make_node()
    open_to_all(node)
    node.scratch.config_path.chmod(0o644)
    command = [*other_user.prefix, other_user.python, *node.scratch.command("status")[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=other_user.env, cwd="/")
    assert done.returncode == 1
    assert "only root may ask the daemon" in done.stderr
    assert "Traceback" not in done.stderr


# --- a long life ------------------------------------------------------------------------------------------------


@pytest.mark.whole  # 10 s until idle threads end
@pytest.mark.parametrize("rounds", [50, pytest.param(250, marks=pytest.mark.soak)])
def test_many_calls_leave_no_descriptor_no_thread_and_no_memory(make_node: Make, rounds: int) -> None:
    node = make_node()
    node.mark()
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    container = os.open(node.netns, os.O_RDONLY)

    def play(count: int) -> None:
        for number in range(count):
            for verb, config in (("ADD", b""), ("DEL", b""), ("ADD", b', "do": "full"'), ("FLY", b"")):
                stdin = b'{"cniVersion": "1.0.0", "name": "net", "type": "faulty"' + config + b"}"
                frame = Frame("cni", "faulty", (), node.env(verb, f"c{number}"), stdin)
                converse(node, frame.encode(), (own, container))

    play(rounds * 2 // 5)
    before = node.descriptors(), node.proc("Threads"), node.proc("VmRSS")
    play(rounds)
    node.until(lambda: node.descriptors() <= before[0] and node.proc("Threads") <= before[1])
    assert node.proc("VmRSS") - before[2] < 4096
    os.close(own)
    os.close(container)
