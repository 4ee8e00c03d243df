"""Programs that the reference's plugins execute, and that are executed for their rules.

Owns: finding and running them, with a fixed PATH, and the sentences of what goes wrong.
Refuses: what they are told. None runs on the path of a container that is ours.
"""

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

from nodeplug import PluginError, TryAgain

PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_PATIENCE: Final = 10.0
Programs = Sequence[str]
"""The names of one program: the first that is found is executed."""


class NoProgram(PluginError):
    """iptables(8) or nft(8) is not installed where nodeplug runs."""


def execute(programs: Programs, *arguments: str, stdin: str = "") -> str:
    """Execute a program; return what it wrote.

    Raises:
        NoProgram: it is missing.
        TryAgain: it fails, as while another program holds its lock.
    """
    found = (shutil.which(name, path=PATH) for name in programs)
    program = next((one for one in found if one is not None), None)
    if program is None:
        tool = programs[0].partition("-")[0].replace("ip6tables", "iptables")
        raise NoProgram(
            f"{programs[0]} is missing, so rules that the reference's plugins have by way of {tool} can be neither "
            f"seen nor written; install {tool.replace('nft', 'nftables')} where nodeplug runs"
        )
    command = [program, *arguments]
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=_PATIENCE, env={"PATH": PATH}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TryAgain(f"{program} cannot be executed: {error}") from error
    if done.returncode:
        raise TryAgain(f"{shlex.join(command)} ended with status {done.returncode}: {done.stderr.strip()[:500]}")
    return done.stdout
