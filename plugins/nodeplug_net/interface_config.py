"""Keys that every plugin of the family has which makes an interface.

Owns: `ipam.type`, the one key that DEL and GC need, and how strictly keys are read.
Refuses: the keys of one plugin. Keys match without regard to case, as Go matches them.
"""

from pydantic import BaseModel, ConfigDict, field_validator
from pydantic.alias_generators import to_camel


class Conf(BaseModel):
    """How the keys of a network are read: camel case, and no number for a text."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True, frozen=True)


class IpamConf(Conf):
    """The key `ipam`, of which the rest is the IPAM plugin's."""

    type: str = ""

    @field_validator("type")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if "/" in name:
            raise ValueError("must be the name of a plugin")
        return name


class DelegationConf(Conf):
    """The key that DEL and GC need: mistakes in others must not keep a container from being detached."""

    ipam: IpamConf = IpamConf()
