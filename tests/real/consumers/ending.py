"""The end of a consumer's process.

Owns: asking first, and the end of patience.
Refuses: what the process leaves behind.
"""

import subprocess


def end(process: "subprocess.Popen[bytes] | None", patience: float) -> None:
    """End a process with SIGTERM, and with SIGKILL when it has not gone.

    Args:
        process: None is ended already.
        patience: seconds that it has after SIGTERM.
    """
    if process is None:
        return
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
