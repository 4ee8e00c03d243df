"""Where drivers have their libraries, below a root.

Owns: the list, for the process that loads one and for what containers get of them.
Refuses: to look there.
"""

from typing import Final

FOLDERS: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
    "lib",
    "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib",
    "run/opengl-driver/lib",
    "usr/lib/wsl/lib",
    "",
)
"""Where distributions, NVIDIA's installer, its driver container, GKE, NixOS and WSL put the library, below a root."""
