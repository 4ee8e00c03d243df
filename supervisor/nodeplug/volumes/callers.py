"""For which pod a call is.

Owns: whether what a call says of its pod is believed: the options of a volume are its author's, kubelet's path is not.
Refuses: to look at the path: what is there may hang.
"""

from pathlib import PurePath

from nodeplug.contract.values import Pod


def pod_of(said: Pod, target: str) -> Pod | None:
    """Return the pod, if kubelet's path of the volume has its uid (`<root>/pods/<uid>/volumes/...`)."""
    return said if said.uid and said.name and said.uid in PurePath(target).parts else None
