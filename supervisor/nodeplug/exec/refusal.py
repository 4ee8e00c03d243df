"""An error of the daemon in the form of each style, for a request that no front has answered.

Owns: CNI error JSON, FlexVolume status JSON, and text.
Refuses: errors of plugins, which the fronts write.
"""

import json

from nodeplug.contract.errors import PluginError, clip, wire
from nodeplug.exec.frame import Reply


def refusal(style: str, error: PluginError, request: str = "") -> Reply:
    """Write an error for a style: CNI error JSON, FlexVolume status JSON, or text on stderr."""
    text = clip(str(error))
    if request and request not in text:
        text += f" (request {request})"
    if style == "cni":
        return Reply(1, json.dumps({"code": wire(error).cni, "msg": text}).encode() + b"\n")
    if style == "flex":
        return Reply(0, json.dumps({"status": wire(error).flex, "message": text}).encode() + b"\n")
    return Reply(1, b"", f"{text}\n".encode(errors="replace"))
