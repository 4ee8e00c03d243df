"""A sample of the mutants of all sources, the same for a seed.

A room is a package below `supervisor/nodeplug` or a package of plugins. Each has one mutant, and the others by its
lines. Of each chosen line one change is made, so that a line with many constants counts no more than another. A larger
sample of the same seed contains nearly all of a smaller one.
"""

import difflib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from random import Random

from tests.mutants.mutations import Mutation, find


@dataclass(frozen=True)
class Mutant:
    """A mutation of a file.

    Attributes:
        room: of the file.
        path: of the file, from the root of the checkout.
        content: the hash of the unchanged file.
        mutation: the change.
    """

    room: str
    path: str
    content: str
    mutation: Mutation

    @property
    def key(self) -> str:
        """What it has in common with no other."""
        change = self.mutation
        return f"{self.path}:{change.line} {self.content[:12]} {change.start}-{change.end} {change.text}"

    def difference(self, source: bytes) -> str:
        """Return the change for `git apply`."""
        before, after = (text.decode().splitlines(keepends=True) for text in (source, self.mutation.apply(source)))
        return "".join(difflib.unified_diff(before, after, f"a/{self.path}", f"b/{self.path}"))


def room_of(path: str) -> str:
    """Return the room of a source."""
    _, package, *below = path.split("/")
    return below[0] if package == "nodeplug" and len(below) > 1 else package


def shares(weights: Mapping[str, int], count: int) -> dict[str, int]:
    """Divide a number by weights: at least one for each, all of it if there is enough."""
    exact = {name: count * weight / sum(weights.values()) for name, weight in weights.items()}
    given = {name: max(1, int(share)) for name, share in exact.items()}
    while sum(given.values()) < count:
        given[max(exact, key=lambda name: exact[name] - given[name])] += 1
    while sum(given.values()) > max(count, len(given)):
        given[max((name for name in given if given[name] > 1), key=lambda name: given[name] - exact[name])] -= 1
    return given


def choose(sources: Mapping[str, tuple[str, bytes]], seed: int, count: int) -> list[Mutant]:
    """Return a sample.

    Args:
        sources: the hash and the content of each file, by its path.
        seed: of what is chosen.
        count: how many mutants.
    """
    rooms: dict[str, dict[tuple[str, int], list[Mutation]]] = defaultdict(lambda: defaultdict(list))
    for path, (_, source) in sorted(sources.items()):
        for mutation in find(source):
            rooms[room_of(path)][path, mutation.line].append(mutation)
    chosen: list[Mutant] = []
    for room, share in sorted(shares({name: len(lines) for name, lines in rooms.items()}, count).items()):
        random = Random(f"{seed} {room}")
        lines = list(rooms[room].items())
        random.shuffle(lines)
        found = (
            Mutant(room, path, sources[path][0], mutation)
            for (path, _), mutations in lines
            for mutation in _one(random, mutations, sources[path][1])
        )
        chosen += islice(found, share)
    return chosen


def _one(random: Random, mutations: list[Mutation], source: bytes) -> Iterator[Mutation]:
    """Return one of the changes of a line that are still Python, if there is any."""
    shuffled = random.sample(mutations, len(mutations))
    return islice((one for one in shuffled if one.compiles(source)), 1)
