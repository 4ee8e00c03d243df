"""The programs of the administrator, and the command line for one volume.

Owns: templates, the options that a pod may set, each by a pattern, and where each of its secrets goes.
Refuses: anything of a pod's that is not declared; a value that would be an option of the program by itself.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from nodeplug import InvalidRequest, Secrets
from nodeplug.fields import FlexDriver, Quantity, Seconds
from nodeplug_volumes.fuse.launch import FOLDERS, TMP

PROGRAM: Final = "program"
"""The option that names the program; every other option is the program's own."""
BUILT_IN: Final[Mapping[str, str]] = MappingProxyType({name: f"{TMP}/{name}" for name in FOLDERS})
"""What a template may have besides options: folders in the program's own /tmp."""
_PLACEHOLDER: Final = re.compile(r"\{([A-Za-z][A-Za-z0-9_-]*)\}")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_SECRET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST: Final = 1024
_SECRET_LIMIT: Final = 1 << 20
_OF_KUBELET: Final = "csi.storage.k8s.io/"


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return text


class Option(BaseModel):
    """`[plugins.fuse.config.programs.<name>.options.<option>]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pattern: Annotated[str, AfterValidator(_pattern)] = Field(
        "[A-Za-z0-9][A-Za-z0-9._/:@-]*",
        description="a regular expression (Python's `re`) that the whole value has to match; allow no comma where the "
        "template has the value among others, as after `-o`",
    )
    default: str | None = Field(None, description="the value if a pod sets none; without it the option is required")


class Secret(BaseModel):
    """`[plugins.fuse.config.programs.<name>.secrets.<key>]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    environment: str = Field("", description="the variable to put it in; by default it is the file `{secrets}/<key>`")
    required: bool = Field(default=True, description="refuse a volume whose Secret lacks it")


class Program(BaseModel):
    """`[plugins.fuse.config.programs.<name>]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: tuple[str, ...] = Field(
        min_length=1,
        description="the program, in the foreground, and its arguments; `{mountpoint}`, `{secrets}` and `{home}` are "
        "paths of the volume, any other `{name}` is an option",
    )
    options: Mapping[str, Option] = Field(default_factory=dict, description="what pods may choose, by name")
    secrets: Mapping[str, Secret] = Field(default_factory=dict, description="what it takes from the volume's Secret")
    environment: Mapping[str, str] = Field(
        default_factory=dict, description="variables of the program; their values are templates, too"
    )
    user: str = Field(
        "", description="the user whom it runs as, by name or number; by default each volume has a number of its own"
    )
    mount_options: tuple[str, ...] = Field(
        ("nosuid", "nodev", "allow_other", "default_permissions"),
        description="options of the mount; `allow_other` lets pods in, `default_permissions` checks modes",
    )
    tmp: Quantity = Field(
        64 << 20,
        ge=1 << 20,
        description="the size of its own /tmp, which is memory; its secrets and its output are there",
    )
    memory: Quantity | None = Field(
        None,
        ge=1 << 20,
        description="what it may have with all that it starts, in a cgroup of its own; without one, what each of its "
        "processes may allocate (RLIMIT_DATA)",
    )
    tasks: int | None = Field(
        None,
        ge=1,
        description="how many processes and threads it may have, in a cgroup of its own; without one, how many its "
        "user may have (RLIMIT_NPROC)",
    )
    start_timeout: Seconds = Field(30.0, description="how long it may take until the filesystem answers")
    restart_after_hang: Seconds | None = Field(
        None, description="end a program that has not answered for so long, and start it again; by default it is left"
    )

    @model_validator(mode="after")
    def _known(self) -> "Program":
        """Refuse a template with what nobody fills in."""
        for name in (*self.options, *self.secrets):
            if name in {PROGRAM, *BUILT_IN} or not (_NAME if name in self.options else _SECRET).fullmatch(name):
                raise ValueError(
                    f"{name!r} cannot be the name of an option or a secret; it is taken, or has odd characters"
                )
        for name in (*self.environment, *(one.environment for one in self.secrets.values() if one.environment)):
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} cannot be the name of a variable")
        texts = [*self.command[1:], *self.environment.values()]
        unknown = sorted({name for text in texts for name in placeholders(text)} - {*self.options, *BUILT_IN})
        if unknown:
            raise ValueError(
                f"{{{unknown[0]}}} is neither an option nor one of {', '.join(BUILT_IN)}; declare it in options"
            )
        if placeholders(self.command[0]):
            raise ValueError("the program itself cannot be chosen by pods; write its name or path")
        if "mountpoint" not in {name for text in self.command for name in placeholders(text)}:
            raise ValueError("the command has no {mountpoint}; every FUSE program has to be told where to mount")
        return self


class FuseConfig(BaseModel):
    """`[plugins.fuse.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    driver: FlexDriver = Field("nodeplug/fuse", description="the FlexVolume driver's name, vendor/driver")
    programs: Mapping[Annotated[str, Field(pattern="^[A-Za-z][A-Za-z0-9_-]{0,62}$")], Program] = Field(
        min_length=1, description="the programs, by the name that pods use"
    )
    first_user: int = Field(
        2_000_000_000,
        ge=1000,
        le=2_147_000_000,
        description="the first of 65536 numbers for users of programs; nobody else may have them",
    )
    check_interval: Seconds = Field(15.0, description="how often each volume is asked whether it answers")
    inline: bool = Field(
        default=False, description="over CSI, the author of a pod may choose the options, without a PersistentVolume"
    )


def placeholders(text: str) -> Iterable[str]:
    """Return the names in a template."""
    return _PLACEHOLDER.findall(text)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Fill in a template.

    Raises:
        InvalidRequest: a value would make the word an option.
    """
    filled = _PLACEHOLDER.sub(lambda match: values[match[1]], text)
    if filled.startswith("-") and not text.startswith("-"):
        raise InvalidRequest("a value at the beginning of an argument cannot begin with '-'")
    return filled


def choose(programs: Mapping[str, Program], options: Mapping[str, str]) -> str:
    """Return the name of the program that a volume asks for.

    Raises:
        InvalidRequest: there is no such program.
    """
    name = options.get(PROGRAM, "")
    if not name and len(programs) == 1:
        name = next(iter(programs))
    if name not in programs:
        raise InvalidRequest(f"option program is {name[:80]!r}; this node has: {', '.join(sorted(programs))}")
    return name


def values_of(name: str, program: Program, options: Mapping[str, str]) -> dict[str, str]:
    """Return the value of every option of a program.

    Raises:
        InvalidRequest: an option is unknown, missing, or has a value that is not allowed.
    """
    own = {key: value for key, value in options.items() if key != PROGRAM}
    unknown = sorted(set(own) - set(program.options))
    if unknown:
        known = ", ".join(sorted(program.options)) or "no options"
        raise InvalidRequest(f"program {name!r} has no option {', '.join(map(repr, unknown))}; it has {known}")
    values = {}
    for key, option in program.options.items():
        value = own.get(key, option.default)
        if value is None:
            raise InvalidRequest(f"program {name!r} needs the option {key}")
        if len(value) > _LONGEST or "\0" in value or not re.fullmatch(option.pattern, value):
            raise InvalidRequest(
                f"option {key} is {value[:80]!r}; it has to match {option.pattern!r}, as this node's administrator says"
            )
        values[key] = value
    return values


def sort_secrets(name: str, program: Program, secrets: Secrets) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return what goes to files, by name, and what goes to variables.

    Raises:
        InvalidRequest: one is missing, not declared, or cannot be a variable.
    """
    given = {key: value for key, value in secrets.items() if not key.startswith(_OF_KUBELET)}
    missing = [key for key, one in program.secrets.items() if one.required and key not in given]
    unknown = sorted(set(given) - set(program.secrets))
    if missing or unknown:
        what = (
            f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)}, which the program does not take"
        )
        raise InvalidRequest(
            f"the Secret of a volume of program {name!r} {what}; it takes: {', '.join(program.secrets)}"
        )
    files, variables = {}, {}
    for key, value in given.items():
        if len(value) > _SECRET_LIMIT:
            raise InvalidRequest(f"secret {key} has {len(value)} bytes; at most {_SECRET_LIMIT} are taken")
        if variable := program.secrets[key].environment:
            variables[variable] = _as_variable(key, value)
        else:
            files[key] = value
    return files, variables


def _as_variable(key: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"secret {key} is not UTF-8, so it cannot be a variable of the program") from None
    if "\0" in text:
        raise InvalidRequest(f"secret {key} has a zero byte, so it cannot be a variable of the program")
    return text
