"""What an installation did, path by path.

Owns: the five possible outcomes for a path, as text and as JSON.
Refuses: to do anything.
"""

from dataclasses import asdict, dataclass, field


@dataclass(slots=True)
class Report:
    """What was done so far.

    Attributes:
        created: new paths.
        updated: existed with other bytes.
        unchanged: existed and were left alone.
        removed: ours and no longer wanted.
        kept: not wanted but not removed, each with the reason.
    """

    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, list[str]]:
        """Return the report for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        told = [f"{name} {', '.join(paths)}" for name, paths in asdict(self).items() if paths and name != "unchanged"]
        rest = [f"{len(self.unchanged)} unchanged"] if self.unchanged else []
        return "; ".join(told + rest) or "nothing to install"
