"""The network configuration of tuning: the keys of the reference plugin, read into values.

Owns: defaults, types, the reference's sentences, and the precedence of the places where a key can stand: `args.cni`
before `runtimeConfig`, before CNI_ARGS, before the configuration itself.
Refuses: the kernel. Keys match without regard to case, as Go matches them.

Source: plugins/meta/tuning/tuning.go of the CNI plugins (parseConf, getSysctlFilename).
"""

import json
import posixpath
import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from nodeplug import CniAttachmentRequest, CniRequest, InvalidRequest
from nodeplug_net.interface_config import Conf
from nodeplug_net.tuning.settings import Settings

_ROOT: Final = "/proc/sys"
_NET: Final = f"{_ROOT}/net/"
_HEX: Final = frozenset(string.hexdigits)
_MAC_SIZES: Final = frozenset({6, 8, 20})
"""Bytes of a hardware address: Ethernet, EUI-64, InfiniBand (net.ParseMAC of Go)."""
_U32: Final = 1 << 32


class _Keys(Conf):
    sysctl: dict[str, str] = Field(default_factory=dict)
    mac: str | None = None
    promisc: bool | None = None
    mtu: int | None = Field(None, ge=0, lt=_U32)
    tx_qlen: int | None = Field(None, alias="txQLen", ge=0, lt=_U32)
    allmulti: bool | None = None


class _Args(Conf):
    cni: _Keys = _Keys()


class _RuntimeConf(Conf):
    mac: str = ""


class _TuningConf(_Keys):
    runtime_config: _RuntimeConf = _RuntimeConf()
    args: _Args = _Args()


class _FolderConf(Conf):
    data_dir: str = ""


@dataclass(frozen=True, slots=True)
class TuningConfig:
    """What one attachment asks for.

    Attributes:
        sysctls: values, by the name as written.
        settings: of the interface; `promisc` is True or not asked for.
    """

    sysctls: Mapping[str, str]
    settings: Settings

    def files(self, ifname: str) -> dict[str, str]:
        """Return the values by file below /proc/sys/net.

        Raises:
            InvalidRequest: a name is none of the network's, or two names are those of one file.
        """
        found: dict[str, str] = {}
        for name, value in self.sysctls.items():
            path = sysctl_file(name, ifname)
            if path in found:
                raise InvalidRequest("duplicated sysctl keys are not allowed", details=f"two names are those of {path}")
            found[path] = value
        return found


def sysctl_file(name: str, ifname: str) -> str:
    """Return the file of a setting; `IFNAME` stands for the interface, whose own name may have dots.

    Raises:
        InvalidRequest: it is no setting of a network namespace.
    """
    below = name.replace(".", "/").replace("IFNAME", ifname, 1)
    path = posixpath.normpath(f"{_ROOT}/{below}")
    if not path.startswith(_NET) or not below.isprintable():
        quoted = json.dumps(below, ensure_ascii=False)
        raise InvalidRequest(
            f"invalid net sysctl key: {quoted}", details="a key is like net.ipv4.conf.IFNAME.arp_filter"
        )
    return path


def parse_mac(text: str) -> str:
    """Return a hardware address as `aa:bb:cc:dd:ee:ff`.

    Raises:
        InvalidRequest: it is none.
    """
    for separator, width in ((":", 2), ("-", 2), (".", 4)):
        parts = text.split(separator)
        digits = "".join(parts).lower()
        if {len(part) for part in parts} == {width} and _HEX.issuperset(digits) and len(digits) // 2 in _MAC_SIZES:
            return bytes.fromhex(digits).hex(":")
    said = f"invalid args {text} for MAC addr: address {text}: invalid MAC address"
    raise InvalidRequest(said, details="it is like 02:00:00:00:00:01")


def parse_tuning(request: CniRequest) -> TuningConfig:
    """Read the configuration of a request, and CNI_ARGS where the verb has them.

    Raises:
        InvalidRequest: a key is wrong.
        InvalidEnvironment: CNI_ARGS is malformed.
    """
    try:
        conf = request.parse(_TuningConf)
    except InvalidRequest as error:
        raise InvalidRequest(f"failed to load netconf: {error}") from error
    mac = conf.mac
    if isinstance(request, CniAttachmentRequest):
        mac = request.read_args("MAC").get("MAC") or mac
    over = conf.args.cni
    mac = _first(over.mac, conf.runtime_config.mac or mac)
    settings = Settings(
        mac=parse_mac(mac) if mac else None,
        promisc=_first(over.promisc, conf.promisc) or None,
        mtu=_first(over.mtu, conf.mtu) or None,
        allmulti=_first(over.allmulti, conf.allmulti),
        queue=_first(over.tx_qlen, conf.tx_qlen),
    )
    return TuningConfig({**conf.sysctl, **over.sysctl}, settings)


def _first(one: Any, other: Any) -> Any:
    return other if one is None else one


def folder_of(request: CniRequest, data_dir: Path) -> Path:
    """Return where a network's backups are; all that DEL and GC need.

    Raises:
        InvalidRequest: `dataDir` is not an absolute path.
    """
    said = request.parse(_FolderConf).data_dir
    folder = Path(said or data_dir)
    if not folder.is_absolute() or not said.isprintable():
        raise InvalidRequest(f"failed to load netconf: key 'dataDir': an absolute path is wanted, found {said!r}")
    return folder
