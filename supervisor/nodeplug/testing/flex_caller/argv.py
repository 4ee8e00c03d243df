"""What kubelet puts on the command line of a FlexVolume driver.

Owns: writing a verb and its arguments, kubelet's own options among them.
Refuses: reading them (`nodeplug.flex.codec` does).
"""

import base64
import json

from nodeplug.flex.codec import CREDENTIAL, PREFIX
from nodeplug.flex.commands import VERBS, Command, Mount, VolumeOptions, verb_of


def encode_argv(command: Command) -> tuple[str, ...]:
    """Write a value as kubelet would put it on the command line, verb first."""
    name = verb_of(command)
    forms = VERBS[name].forms
    form = forms[1] if isinstance(command, Mount) and command.device else forms[0]
    values = [getattr(command, part) for part in form]
    return (name, *(_write_options(value) if isinstance(value, VolumeOptions) else str(value) for value in values))


def _write_options(options: VolumeOptions) -> str:
    known = {
        "fsType": options.fs_type,
        "readwrite": "ro" if options.read_only else "rw",
        "pvOrVolumeName": options.volume_name,
        "pod.name": options.pod.name,
        "pod.namespace": options.pod.namespace,
        "pod.uid": options.pod.uid,
        "serviceAccount.name": options.pod.service_account,
        "mounterArgs.FsGroup": "" if options.fs_group is None else str(options.fs_group),
    }
    always = {"fsType", "readwrite", "pvOrVolumeName"}
    pairs = {PREFIX + key: value for key, value in known.items() if value or key in always}
    pairs |= {CREDENTIAL + key: base64.b64encode(value).decode() for key, value in options.secrets.items()}
    return json.dumps(pairs | dict(options.own), sort_keys=True)
