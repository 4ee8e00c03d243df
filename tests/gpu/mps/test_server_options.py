"""How control daemons are started: with caps for equal shares, and for all users where that is asked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeplug.testing.waiting import until
from nodeplug_gpu.cards import Card, Snapshot, Uuid
from nodeplug_gpu.config import GpuConfig, Mps
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.limits import limits_in_words
from nodeplug_gpu.mps.cards import MpsDaemons, MpsReconciler
from nodeplug_gpu.mps.client import client
from nodeplug_gpu.mps.folders import Folders
from nodeplug_gpu.mps.record import Record
from nodeplug_gpu.pool import Pool, PoolMember

pytestmark = pytest.mark.node

CARD = Card(Uuid("GPU-1"), 0, 0, "X", 16 << 30, compute_capability=(9, 0))
PASCAL = Card(Uuid("GPU-1"), 0, 0, "X", 16 << 30, compute_capability=(6, 1))
NAME = "nvidia.com/gpu.shared"
Make = Callable[[], MpsDaemons]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeplug_gpu.mps.cards.GRACE_PERIOD", 0.3)
    monkeypatch.setattr("nodeplug_gpu.mps.cards.SETTLE_TIME", 0.2)


@pytest.fixture
def starts(driver_root: Path) -> Callable[[], list[str]]:
    """Arguments and caps of each start."""
    file = driver_root / "usr/bin/starts"
    return lambda: file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def new_driver(driver_root: Path) -> None:
    """A control program that has the option."""
    program = driver_root / "usr/bin/nvidia-cuda-mps-control"
    program.write_text(program.read_text() + "# multiuser-server\n")


def serve(daemons: MpsDaemons, card: Card = CARD, **config: Any) -> None:
    daemons.reconcile({card.uuid: (card, Mps(**config))})


class Shared:
    """A card whose replicas are shared by MPS, as the reconciler has it."""

    def __init__(self, daemons: MpsDaemons, **entry: Any) -> None:
        entry = {"mps": {}} | entry
        if "sharing" not in entry:
            entry = {"sharing": "replicas", "resource": NAME, "replicas": 4} | entry
        self.config = GpuConfig.model_validate({"resources": [entry]})
        self.entry = self.config.resources[0]
        self.reconciler, self.daemons = MpsReconciler(daemons, self.config), daemons
        self.held = False

    def reconcile(self) -> str:
        """Bring the daemon in line; return why the card is not allocatable."""
        allocated = frozenset({CARD.uuid} if self.held else ())
        pools = {self.entry.resource: Pool((PoolMember(CARD),))}
        self.reconciler.reconcile(Inventory(Snapshot("running", cards=(CARD,)), pools, allocated=allocated))
        return self.daemons.reason(CARD.uuid)


def test_a_daemon_for_equal_shares_caps_what_its_clients_can_set(
    daemons: Make, starts: Callable[[], list[str]], short_path: Path
) -> None:
    shared = Shared(daemons())
    until(lambda: not shared.reconcile())
    assert starts() == ["-f|0=4096M|25"]
    record = Record.read(Folders.of(short_path, CARD.uuid).record)
    assert record is not None
    assert limits_in_words(shared.entry, CARD, record.caps) == "mps (a pod can lower them)"


@pytest.mark.parametrize(
    ("entry", "caps"),
    [
        ({"mps": {"thread_percentage": False}}, "-f|0=4096M|"),
        ({"refuse_more_than_one": False}, "-f||"),
        ({"sharing": "memory"}, "-f||"),
    ],
    ids=["memory alone", "shares of several replicas", "shares by units"],
)
def test_a_cap_is_never_lower_than_what_a_container_may_have(
    entry: dict[str, Any], caps: str, daemons: Make, starts: Callable[[], list[str]]
) -> None:
    shared = Shared(daemons(), **entry)
    until(lambda: not shared.reconcile())
    assert starts() == [caps]


def test_a_card_whose_daemon_has_the_caps_of_other_replicas_waits_for_a_new_daemon(
    daemons: Make, starts: Callable[[], list[str]]
) -> None:
    before = Shared(daemons(), replicas=8)
    until(lambda: not before.reconcile())
    before.daemons.stop()
    after = Shared(daemons(), replicas=4)
    after.held = True
    until(lambda: not after.reconcile())
    assert starts() == ["-f|0=2048M|12"]
    after.held = False
    after.reconcile()
    assert "about to be replaced: its clients have other limits than are configured" in after.reconcile()
    until(lambda: not after.reconcile() and len(starts()) == 2)
    assert starts()[1] == "-f|0=4096M|25"


def test_a_daemon_that_died_comes_back_with_the_caps_that_its_clients_run_under(
    daemons: Make, starts: Callable[[], list[str]], short_path: Path
) -> None:
    before = Shared(daemons(), replicas=8)
    until(lambda: not before.reconcile())
    before.daemons.stop()
    record = Record.read(Folders.of(short_path, CARD.uuid).record)
    assert record is not None
    (Folders.of(short_path, CARD.uuid).pipes / "quit").touch()
    until(lambda: not record.runs)
    after = Shared(daemons(), replicas=4)
    after.held = True
    until(lambda: not after.reconcile() and len(starts()) == 2)
    assert starts() == ["-f|0=2048M|12"] * 2


def test_one_user_is_served_at_a_time_by_default(
    daemons: Make, starts: Callable[[], list[str]], new_driver: None
) -> None:
    one = daemons()
    serve(one)
    until(lambda: not one.reason(CARD.uuid))
    assert starts() == ["-f||"]


@pytest.mark.parametrize("wanted", [True, "auto"])
def test_all_users_are_served_where_the_program_can(
    wanted: Any, daemons: Make, starts: Callable[[], list[str]], new_driver: None
) -> None:
    one = daemons()
    serve(one, multiuser_server=wanted)
    until(lambda: not one.reason(CARD.uuid))
    assert starts() == ["-f -multiuser-server||"]


def test_one_user_is_served_where_all_were_left_to_the_driver_and_it_is_too_old(
    daemons: Make, starts: Callable[[], list[str]]
) -> None:
    one = daemons()
    serve(one, multiuser_server="auto")
    until(lambda: not one.reason(CARD.uuid))
    assert starts() == ["-f||"]


def test_a_driver_that_is_too_old_for_all_users_is_refused_in_a_sentence(
    daemons: Make, starts: Callable[[], list[str]]
) -> None:
    one = daemons()
    serve(one, multiuser_server=True)
    until(lambda: "multiuser_server = true" in one.reason(CARD.uuid))
    assert one.reason(CARD.uuid).endswith(
        'has no option -multiuser-server: the driver is too old for it; choose "auto" or false'
    )
    assert starts() == []


def test_a_card_before_volta_is_refused_for_all_users(daemons: Make, new_driver: None) -> None:
    one = daemons()
    serve(one, PASCAL, multiuser_server=True)
    until(lambda: "the card cannot: compute capability 6.1, below 7.0" in one.reason(CARD.uuid))


def test_a_daemon_for_one_user_is_replaced_when_nobody_holds_its_card(
    daemons: Make, starts: Callable[[], list[str]], new_driver: None
) -> None:
    one = daemons()
    serve(one)
    until(lambda: not one.reason(CARD.uuid))
    one.stop()
    two = daemons()

    def replaced() -> bool:
        serve(two, multiuser_server=True)
        return len(starts()) == 2 and not two.reason(CARD.uuid)

    until(replaced)
    assert starts()[1] == "-f -multiuser-server||"


def test_caps_are_the_limits_that_containers_get(
    daemons: Make, starts: Callable[[], list[str]], short_path: Path
) -> None:
    shared = Shared(daemons(), replicas=3)
    until(lambda: not shared.reconcile())
    env = client(Folders.of(short_path, CARD.uuid), CARD, int(CARD.memory / 3), 1 / 3, threads=True).env
    wanted = f"{env['CUDA_MPS_PINNED_DEVICE_MEM_LIMIT']}|{env['CUDA_MPS_ACTIVE_THREAD_PERCENTAGE']}"
    assert starts() == [f"-f|{wanted}"]
