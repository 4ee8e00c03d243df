"""Which cards a part of the configuration is for.

Owns: the keys that choose cards, and what the memory of those is that do not tell theirs.
Refuses: to look at the machine (`pool` and `sizes` do).
"""

from fnmatch import fnmatchcase
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from nodeplug.fields import Quantity
from nodeplug_gpu.cards import Card


class Model(BaseModel):
    """A table of the configuration: no other keys, and nothing changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _pci(address: str) -> str:
    parts = address.lower().replace(".", ":").split(":")
    if len(parts) == 3:
        parts = ["0000", *parts]
    if len(parts) != 4 or not all(part and all(letter in "0123456789abcdef" for letter in part) for part in parts):
        raise ValueError("must be a PCI address such as 0000:3b:00.0")
    domain, bus, device, function = (int(part, 16) for part in parts)
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


PciAddress = Annotated[str, AfterValidator(_pci)]


class Cards(Model):
    """Which cards: those that match one entry of every key that is given. Without a key, all."""

    index: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (),
        description="NVML's indexes, as in `nvidia-smi -L` when they were first used: they move when a card is gone; "
        "prefer `uuid` or `model`.",
    )
    uuid: tuple[str, ...] = Field((), description="UUIDs, `GPU-…`.")
    model: tuple[str, ...] = Field((), description="Patterns of product names, such as `*H100*`.")
    pci: tuple[PciAddress, ...] = Field((), description="PCI addresses, such as 0000:3b:00.0.")

    def must_overlap(self, other: "Cards") -> bool:
        """Whether both choose some card, whatever cards there are; False where that depends on the machine."""
        mine, its = self.given(), other.given()
        if not mine or not its:
            return True
        return mine.keys() == its.keys() and all(set(mine[key]) & set(its[key]) for key in mine)

    def given(self) -> dict[str, tuple[object, ...]]:
        """Return the keys that limit the choice."""
        keys = {"index": self.index, "uuid": self.uuid, "model": self.model, "pci": self.pci}
        return {name: values for name, values in keys.items() if values}

    def choose(self, card: Card, index: int | None) -> bool:
        """Whether a card is chosen; its index is the one that it has in the configuration, None for none."""
        return (
            (not self.index or index in self.index)
            and (not self.uuid or card.uuid in self.uuid)
            and (not self.model or any(fnmatchcase(card.model, pattern) for pattern in self.model))
            and (not self.pci or card.pci in self.pci)
        )


class CardMemory(Model):
    """The memory of cards whose driver does not tell it; both patterns must match where both are given."""

    model: str = Field("", description="Pattern of product names, such as `*GB10*`.")
    uuid: str = Field("", description="Pattern of UUIDs, such as `GPU-5f0c*`.")
    size: Quantity = Field(
        ge=1 << 20,
        le=1 << 46,
        description='What containers may share of it, such as "96GiB"; leave the machine its part.',
    )

    @model_validator(mode="after")
    def _names_cards(self) -> Self:
        if not self.model and not self.uuid:
            raise ValueError("says of no card how much memory it has; give `model` or `uuid`, a pattern")
        return self

    def is_for(self, card: Card) -> bool:
        """Whether it is about a card."""
        return (not self.model or fnmatchcase(card.model, self.model)) and (
            not self.uuid or fnmatchcase(card.uuid, self.uuid)
        )
