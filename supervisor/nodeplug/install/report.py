"""What an installation did, as paths.

Owns: the five outcomes that a path can have, and how people and programs read them.
Refuses: to do anything.
"""

from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Report:
    """What was done, as paths.

    Attributes:
        created: new.
        updated: there before with other bytes.
        unchanged: there before and left untouched.
        removed: ours and no longer wanted.
        kept: not wanted and not removed, each with the reason.
    """

    created: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether anything on disk is different now."""
        return bool(self.created or self.updated or self.removed)

    def as_dict(self) -> dict[str, list[str]]:
        """Return the report for JSON."""
        return {name: list(paths) for name, paths in asdict(self).items()}

    def __str__(self) -> str:
        told = [f"{name} {', '.join(paths)}" for name, paths in asdict(self).items() if paths and name != "unchanged"]
        rest = [f"{len(self.unchanged)} unchanged"] if self.unchanged else []
        return "; ".join(told + rest) or "nothing to install"


@dataclass(slots=True)
class Tally:
    """A report while it grows."""

    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def report(self) -> Report:
        """Return what was done so far."""
        return Report(*(tuple(paths) for paths in asdict(self).values()))
