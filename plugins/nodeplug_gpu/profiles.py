"""Which resource MIG instances are, and of how many replicas: by their profiles.

Owns: the keys of the configuration that say so, patterns of profiles, and the names of NVIDIA's device plugin, which
hold where there are none.
Refuses: instances, and which cards have them.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator

from nodeplug.fields import ExtendedResource

PROFILES: Final = (
    *("1g.5gb", "1g.5gb+me", "1g.6gb", "1g.6gb+me", "1g.10gb", "1g.10gb+me", "1g.12gb", "1g.12gb+me", "1g.18gb"),
    *("1g.18gb+me", "1g.20gb", "1g.23gb", "1g.23gb+me", "1g.24gb", "1g.45gb", "2g.10gb", "2g.12gb", "2g.12gb+me"),
    *("2g.20gb", "2g.24gb", "2g.35gb", "2g.45gb", "3g.20gb", "3g.40gb", "3g.47gb", "3g.48gb", "3g.71gb", "3g.90gb"),
    *("4g.20gb", "4g.24gb", "4g.24gb+me", "4g.40gb", "4g.47gb", "4g.48gb", "4g.71gb", "4g.90gb", "7g.40gb", "7g.80gb"),
    *("7g.94gb", "7g.96gb", "7g.141gb", "7g.180gb"),
)
"""MIG profiles of the cards since A30 and A100 (NVIDIA, "MIG User Guide", "Supported MIG Profiles")."""
DEFAULT_SINGLE: Final = "nvidia.com/gpu"
_ANY: Final = "nvidia.com/mig"
"""Stands for an entry without a name of its own: by default, and where no profile has a valid name."""
_NAME: Final[TypeAdapter[str]] = TypeAdapter(ExtendedResource)
_Count = Annotated[int, Field(ge=1, le=1000)]
_Value = TypeVar("_Value")


def default_name(profile: str) -> str:
    """Return the name of a profile's resource as NVIDIA's device plugin has it by default."""
    return f"{_ANY}-{profile.replace('+', '.')}"


DEFAULT_NAMES: Final[Mapping[str, str]] = {profile: default_name(profile) for profile in PROFILES}


def first_match(patterns: Mapping[str, _Value], profile: str) -> _Value | None:
    """Return what the first pattern that a profile matches stands for; None if it matches none."""
    return next((value for pattern, value in patterns.items() if fnmatchcase(profile, pattern)), None)


def _is_resource(name: object) -> bool:
    try:
        return bool(_NAME.validate_python(name))
    except ValidationError:
        return False


class MigKeys(BaseModel):
    """The keys of an entry for MIG instances."""

    strategy: Literal["none", "single", "mixed"] = Field(
        "single",
        description="`none`: whole cards, MIG or not. `single`: each instance is one of `resource`; all cards are in "
        "MIG mode, all instances of one profile. `mixed`: each profile is a resource of its own.",
    )
    profiles: dict[str, ExtendedResource] = Field(
        default_factory=dict,
        description='For `mixed`: resource names by patterns of profiles, `{ "1g.*" = "nvidia.com/mig-small" }`; the '
        "first that fits holds. By default NVIDIA's names, such as nvidia.com/mig-1g.10gb.",
    )
    replicas: _Count | dict[str, _Count] = Field(
        1,
        description="How many containers may share an instance by time-slicing; or by patterns of profiles, "
        '`{ "3g.*" = 4 }`.',
    )
    refuse_more_than_one: bool = Field(
        True, description="Refuse a container that asks for two replicas: it would not get twice the time."
    )
    policy: Literal["binpack", "spread"] = Field(
        "spread", description="With `replicas`: fill an instance first, or use the emptiest."
    )

    @model_validator(mode="before")
    @classmethod
    def _mixed_is_known_by_its_first_name(cls, data: Any) -> Any:
        """Its resources are those of its profiles; `resource` need not be given then."""
        if isinstance(data, dict) and data.get("strategy") == "mixed":
            profiles = data.get("profiles")
            names = profiles.values() if isinstance(profiles, dict) else ()
            return {"resource": next(filter(_is_resource, names), _ANY), **data}
        return data

    @model_validator(mode="after")
    def _profiles_belong_to_mixed(self) -> Self:
        if self.strategy != "mixed" and self.profiles:
            raise ValueError("`profiles` names the resources of strategy 'mixed', and is refused elsewhere")
        return self

    @model_validator(mode="after")
    def _replicas_are_of_instances(self) -> Self:
        if self.strategy == "none" and self.replicas != 1:
            raise ValueError("`replicas` are of instances; for those of whole cards use sharing = 'replicas'")
        return self

    @property
    def names(self) -> Mapping[str, str]:
        """Resource names by patterns of profiles, for `mixed`."""
        return self.profiles or DEFAULT_NAMES

    def replicas_of(self, profile: str) -> int:
        """Return as how many devices an instance is advertised."""
        if isinstance(self.replicas, int):
            return self.replicas
        return first_match(self.replicas, profile) or 1

    @property
    def replicas_in_words(self) -> str:
        """Who shares an instance; empty where nobody does. The words are kept in allocation records."""
        if isinstance(self.replicas, int):
            return "" if self.replicas == 1 else f"{self.replicas} replicas of an instance"
        several = {pattern: count for pattern, count in self.replicas.items() if count > 1}
        return ", ".join(f"{count} replicas of {pattern}" for pattern, count in several.items())
