"""What the settings of tuned containers are, asked every second, as the kernel tells nobody of a change.

Owns: the comparison of sysctls and of what was set of an interface, with configurations that were read once.
Refuses: to tell and to restore (the plugin's `Reconciler`), and containers whose namespace is gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeplug import InvalidNetns, Netns, PluginError
from nodeplug_net.level.containers import Container, Containers
from nodeplug_net.netlink.links import links_in
from nodeplug_net.tuning import sysctls
from nodeplug_net.tuning.config import parse_tuning
from nodeplug_net.tuning.settings import Settings, differences, look

Wanted = tuple[Mapping[str, str], Settings]


@dataclass(slots=True)
class Polled:
    """What is wanted, by label. For one thread."""

    _wanted: dict[str, tuple[Container, Wanted]] = field(default_factory=dict)
    _found: frozenset[str] = frozenset()

    def news(self, containers: Containers) -> bool:
        """Whether others differ than at the last look; the next one is at those."""
        known = containers.running()
        self._wanted = {label: one for label, one in self._wanted.items() if label in known}
        found = frozenset(label for label, one in known.items() if self._differs(label, one))
        looked_at = containers.differing
        news = (found - looked_at) | ((looked_at & self._found) - found)
        self._found = found
        containers.mark(news)
        return bool(news)

    def _differs(self, label: str, one: Container) -> bool:
        try:
            files, settings = self._wanted_of(label, one)
            netns = Netns.open(one.path)
        except (InvalidNetns, PluginError):
            return False
        try:
            with netns.entered():
                if any(sysctls.differences(files)):
                    return True
            if not settings:
                return False
            with links_in(netns) as links:
                link = look(links, one.attachment.ifname)
            return link is not None and any(differences(link.name, settings, link.settings))
        except OSError:
            return False
        finally:
            netns.close()

    def _wanted_of(self, label: str, one: Container) -> Wanted:
        known = self._wanted.get(label)
        if known is None or known[0] is not one:
            config = parse_tuning(one.request)
            known = self._wanted[label] = one, (config.files(one.attachment.ifname), config.settings)
        return known[1]
