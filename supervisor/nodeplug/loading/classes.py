"""Plugin classes: imported by their place, and their sections' tables validated.

Owns: what a class must be before it is constructed, and how a refusal is worded.
Refuses: entry points (`discovery`): a worker is told module and attribute, since reading the metadata of every
distribution takes memory and time in each of them. For the same reason sentences about mistakes are imported late.
"""

import importlib
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from nodeplug.contract.errors import PluginError, text_of

if TYPE_CHECKING:
    from nodeplug.config.mistakes import Location, Mistake


class NoConfig(BaseModel):
    """The configuration of a plugin that has none: any key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PluginRefused(PluginError):
    """A plugin cannot be loaded; the message names it, its distribution and the reason."""


class Misconfigured(PluginRefused):
    """A plugin's own table is wrong; the message has one line per mistake."""

    def __init__(self, mistakes: "Iterable[Mistake]", tell: "Callable[[Location, str], str]") -> None:
        from nodeplug.config.mistakes import first  # noqa: PLC0415 - see the header

        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(first([tell(one.location, one.text) for one in self.mistakes])))


@dataclass(frozen=True, slots=True)
class Found:
    """A plugin class that can be loaded."""

    cls: type[Any]
    distribution: str

    @property
    def config_model(self) -> type[BaseModel]:
        """The class that validates `[plugins.<name>.config]`."""
        model: type[BaseModel] = getattr(self.cls, "Config", NoConfig)
        return model

    @property
    def asks_for_thread(self) -> bool:
        """Whether it wants to run in the daemon, where the administrator does not say otherwise."""
        asked = getattr(self.cls, "isolation", "process")
        if asked not in {"thread", "process"}:
            who = f"plugin class {self.cls.__name__} of {self.distribution}"
            raise PluginRefused(f'{who} asks for isolation {asked!r}; there are "thread" and "process"')
        return bool(asked == "thread")


_FORGETTING: Final = threading.Lock()
"""Plugins are found in several threads, and importlib fails when another thread clears the same cache."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a class is.

    Attributes:
        uses: as the section names it, for messages.
        module: to import.
        attribute: of the module; may have dots.
        distribution: that brings it, or its module.
        bundled: it comes with the daemon.
    """

    uses: str
    module: str
    attribute: str
    distribution: str
    bundled: bool = False

    def load(self, advice: str = "into this environment, or name its folder in PYTHONPATH") -> "Found":
        """Import the class. In the thread of its loading: the module is plugin code.

        `advice` says where its package is to be installed.

        Raises:
            PluginRefused: it cannot be imported, or is no class.
        """
        uses, distribution = self.uses, self.distribution
        try:
            with _FORGETTING:
                importlib.invalidate_caches()
            cls = attrgetter(self.attribute)(importlib.import_module(self.module))
        except (Exception, SystemExit) as error:
            absent = isinstance(error, ModuleNotFoundError) and error.name == self.module
            how = f"; install its package {advice}" if absent else ""
            why = f"{type(error).__name__}: {text_of(error)}{how}"
            raise PluginRefused(f"plugin {uses!r} of {distribution} cannot be imported: {why}") from error
        if not inspect.isclass(cls):
            raise PluginRefused(f"plugin {uses!r} of {distribution} is a {type(cls).__name__}, not a class")
        found = Found(cls, distribution)
        if not (inspect.isclass(found.config_model) and issubclass(found.config_model, BaseModel)):
            raise PluginRefused(
                f"plugin {uses!r} of {distribution}: its Config is no pydantic model; derive it from BaseModel"
            )
        return found


def validate_config(
    name: str, found: Found, config: Mapping[str, Any], tell: "Callable[[Location, str], str] | None" = None
) -> BaseModel:
    """Validate a plugin's own configuration; `tell` writes a mistake with its file and line.

    Raises:
        Misconfigured: with every wrong key.
        PluginRefused: its class raises something else.
    """
    document = dict(config)
    try:
        return found.config_model.model_validate(document)
    except ValidationError as error:
        from nodeplug.config.mistakes import explain, told  # noqa: PLC0415 - see the header

        mistakes = explain(error, found.config_model, document)
        raise Misconfigured([_in_section(name, found, one) for one in mistakes], tell or told) from error
    except (Exception, SystemExit) as error:
        text = f"plugin {name!r} of {found.distribution} cannot validate its configuration: {type(error).__name__}"
        raise PluginRefused(f"{text}: {text_of(error)}") from error


def _in_section(name: str, found: Found, mistake: "Mistake") -> "Mistake":
    from nodeplug.config.mistakes import Mistake  # noqa: PLC0415 - see the header

    why = ": the plugin's class has no Config" if found.config_model is NoConfig else ""
    return Mistake(("plugins", name, "config", *mistake.location), mistake.text + why)
