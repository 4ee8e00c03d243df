"""A systemd of its own, in namespaces: process ids, mounts, network, host name, cgroups.

Owns: the system manager, with no units but targets of these tests, and everything that it starts.
Refuses: the machine's units and generators, which would act on the machine's own disks and settings.
"""

import secrets
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import pytest
from tests.programs import need_command

from nodeplug.testing.inventory import cgroups_of, make_cgroup
from nodeplug.testing.waiting import PATIENCE

PROGRAM: Final = Path("/lib/systemd/systemd")
_UNITS: Final = "/usr/lib/systemd/system"
_EMPTY: Final = f"/run /etc/systemd/system {_UNITS} /usr/lib/systemd/system-generators"
_TARGETS: Final = "sysinit basic local-fs multi-user shutdown sockets timers paths slices umount test"
# A mount of cgroups that came along shows the machine's root as this systemd's own one: it would remove what is empty
# there, such as the cgroups that other tests have made and not yet filled. A new one shows the own cgroup as the root.
_SETUP: Final = f"""
for procs in /sys/fs/cgroup/*/$1/cgroup.procs /sys/fs/cgroup/$1/cgroup.procs; do
    [ ! -e $procs ] || echo $$ >$procs
done
exec unshare --pid --fork --kill-child --mount --mount-proc --propagation private --net --uts --cgroup sh -ec '
    former=$(grep -E "^[^ ]+ [^ ]+ cgroup2? " /proc/self/mounts)
    echo "$former" | while read -r _ path type options _; do
        [ $type = cgroup ] || options=rw
        umount -l $path  # the same one cannot be mounted over itself
        mount -t $type -o $options none $path
    done
    ip link set lo up
    for path in {_EMPTY}; do mount -t tmpfs tmpfs $path; done
    for target in {_TARGETS}; do printf "[Unit]\\nDefaultDependencies=no\\n" >{_UNITS}/$target.target; done
    mkdir -p /run/systemd/system
    exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin {PROGRAM} --system --unit=test.target \
        --show-status=0 --log-target=console'
"""


class Systemd:
    """One that runs until it is closed; a test without it, or without root, is skipped by name."""

    def __init__(self) -> None:
        if not PROGRAM.exists():
            pytest.skip("needs systemd: apt-get install systemd")
        self._cgroup = f"nodeplug-systemd-{secrets.token_hex(4)}"
        make_cgroup(self._cgroup)
        command = ["sh", "-ec", _SETUP, "sh", self._cgroup]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            self._until_running()
        except BaseException:
            self.close()
            raise

    def _until_running(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self._process.poll() is None:
            with suppress(OSError, LookupError, subprocess.CalledProcessError):
                if self.run("systemctl", "is-active", "test.target").strip() == "active":
                    return
            time.sleep(0.05)
        raise RuntimeError(f"systemd does not run; {PROGRAM} ended with {self._process.poll()}")

    @property
    def _manager(self) -> int:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text(encoding="ascii")
        return int(children.split()[0])

    def ask(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside."""
        need_command(command)
        inside = ["nsenter", "-t", str(self._manager), "-m", "-p", "-n", "-u", "-C", "--"]
        return subprocess.run([*inside, *command], capture_output=True, text=True, check=False)

    def run(self, *command: str) -> str:
        """Run a command inside, and return what it printed.

        Raises:
            subprocess.CalledProcessError: it failed.
        """
        done = self.ask(*command)
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        return done.stdout

    def close(self) -> None:
        """End it with all that it has started."""
        self._process.kill()  # its child, the first process of the namespace, goes with it
        self._process.wait()
        end = time.monotonic() + PATIENCE
        while (left := cgroups_of(self._cgroup)) and time.monotonic() < end:
            for path in left:
                with suppress(OSError):  # its processes are still ending
                    path.rmdir()
            time.sleep(0.02)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
