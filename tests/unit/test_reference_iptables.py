"""What iptables-legacy(8) says, and what it fails with."""

from pathlib import Path

import pytest

from nodeplug import TryAgain
from nodeplug_net.reference import iptables as reference_iptables
from nodeplug_net.reference import programs as reference_programs
from nodeplug_net.reference.iptables import LegacyRules
from nodeplug_net.reference.programs import NoProgram

OURS = (
    '-A POSTROUTING -s 10.77.0.2/32 -m comment --comment "name: \\"net\\" id: \\"c0\\"" -j CNI-0123456789abcdef01234567'
)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(reference_programs, "PATH", str(tmp_path))
    monkeypatch.setattr(reference_iptables, "_is_in_use", lambda version: version == 4)
    return tmp_path / "iptables-legacy"


def write(program: Path, *lines: str) -> None:
    program.write_text("#!/bin/sh\n" + "\n".join(lines) + "\n")
    program.chmod(0o755)


def test_lines_of_other_programs_are_passed_over(program: Path) -> None:
    lines = (
        '-A POSTROUTING -m comment --comment "ends here',
        "-A POSTROUTING -s 10.0.0.1/255.0.255.0 -j CNI-other",
        OURS,
    )
    (program.parent / "told").write_text("\n".join(lines))
    write(
        program,
        f"while read -r line; do printf '%s\\n' \"$line\"; done < {program.parent}/told",
        f"printf '%s' '{OURS}'",
    )
    (rule,) = {rule.comment for rule in LegacyRules().rules()}
    assert rule == 'name: "net" id: "c0"'


def test_a_lock_that_another_program_holds_is_no_empty_table(program: Path) -> None:
    write(program, "echo Another app is currently holding the xtables lock >&2", "exit 4")
    with pytest.raises(TryAgain, match=r"iptables-legacy -w 5 .* status 4: Another app"):
        LegacyRules().rules()


def test_a_missing_program_is_told_by_its_name(program: Path) -> None:
    assert not program.exists()
    with pytest.raises(NoProgram, match="iptables-legacy is missing"):
        LegacyRules().rules()
