"""What is imported, and what is left until somebody wants it: the daemon holds its modules for as long as a node runs.

Tests look at interpreters of their own; one that imports the daemon is for all who ask what that loads.
"""

import subprocess
import sys
from functools import cache

import pytest

pytestmark = pytest.mark.xdist_group("imports")  # so that each script runs once

ENCODE = "from nodeplug_net.warm import warm_up; warm_up()\n"
EVERYTHING = (
    "from nodeplug_net.netlink import messages\nfrom nodeplug_net.nftables import masquerade_messages\n"
    + "".join(
        f"print({call})\n"
        for call in (
            "bytes(messages.create_veth(mtu=True, mac=True)._encoded).hex()",
            "bytes(messages.create_bridge(mtu=True)._encoded).hex()",
            "bytes(messages.address(messages.RTM_NEWADDR, 6, 64)._encoded).hex()",
            "bytes(messages.route('10.0.0.0/8', '10.0.0.1', (('mtu', 1400),), 5, 300, None)._encoded).hex()",
            "[bytes(one).hex() for one in masquerade_messages.rebuild([masquerade_messages.IPv6Network('fd00::/64')])]",
        )
    )
)


def interpreter(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", f"import sys\n{script}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@cache
def modules(after: str) -> tuple[str, ...]:
    """Return what an interpreter has loaded after a script."""
    return tuple(sorted(interpreter(f"{after}\nprint(*sys.modules)").split()))


def loaded(after: str, *packages: str) -> list[str]:
    return [name for name in modules(after) if any(f"{name}.".startswith(f"{package}.") for package in packages)]


def test_the_daemon_loads_nothing_that_draws_tables() -> None:
    theirs = loaded("import typer", "rich")  # old releases of typer need it at once
    ours = loaded("import nodeplug.cli, nodeplug.daemon", "rich", "nodeplug.cli.tables")
    assert sorted(set(ours) - set(theirs)) == []


def test_the_daemon_loads_nothing_that_acts_its_callers_out() -> None:
    assert (
        loaded("import nodeplug.cli, nodeplug.daemon", "nodeplug.testing", "nodeplug.cli.trial", "nodeplug.cli.demo")
        == []
    )


def test_the_daemon_loads_no_client_of_the_api_server_before_it_has_somebody_to_ask() -> None:
    theirs = ("nodeplug.kubeapi", "nodeplug.networks.followed", "yaml")
    assert loaded("import nodeplug.cli, nodeplug.daemon", *theirs) == []


def test_the_daemon_loads_nothing_of_scheduler_extenders_before_its_configuration_has_some() -> None:
    theirs = ("nodeplug.extender.listener", "nodeplug.extender.service", "nodeplug.extender.codec")
    assert loaded("import nodeplug.cli, nodeplug.daemon", *theirs) == []


def test_the_daemon_loads_nothing_that_publishes_before_it_is_asked_for() -> None:
    found = loaded("import nodeplug.cli, nodeplug.daemon", "nodeplug.cluster")
    assert sorted(found) == ["nodeplug.cluster", "nodeplug.cluster.section"]


def test_the_first_lists_after_a_start_wait_for_no_import_that_they_can_do_without() -> None:
    heavy = ("pydantic", "pluggy", "prometheus_client", "pyroute2", "importlib.metadata", "h11")
    ours = (
        "nodeplug.config",
        "nodeplug.loading",
        "nodeplug.worker",
        "nodeplug.hosting.slot",
        "nodeplug.contract.netns",
    )
    assert loaded("import nodeplug.first_lists", *heavy, *ours) == []


def test_nothing_but_the_first_lists_is_imported_before_the_daemon() -> None:
    stop_at_the_daemon = """
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "nodeplug.daemon":
            raise SystemExit
sys.meta_path.insert(0, Stop())
sys.argv = ["nodeplug", "serve", "--config=/nonexistent", "--root", "/nonexistent"]
from nodeplug.__main__ import main
try:
    main()
except SystemExit:
    pass
"""
    unwanted = (
        "typer",
        "pydantic",
        "pluggy",
        "nodeplug.cli",
        "nodeplug.contract.values.volumes",
        "nodeplug.contract.netns",
    )
    assert loaded(stop_at_the_daemon, *unwanted, "asyncio.events") == ["asyncio.events"]


def test_every_name_of_the_contract_is_there_when_it_is_asked_for() -> None:
    ask = """
import nodeplug
assert "pydantic" not in sys.modules and "Device" not in vars(nodeplug)
from nodeplug import *
import nodeplug.contract.values as values
print(Device is nodeplug.Device is values.Device, "Device" in dir(nodeplug), {*values.__all__} < {*nodeplug.__all__})
"""
    assert interpreter(ask) == "True True True"


def test_the_collector_rests_while_the_daemon_is_imported_and_works_afterwards() -> None:
    serve = """
import gc
from pathlib import Path
from nodeplug import PluginError
from nodeplug.serving import serve
collected = sum(generation["collections"] for generation in gc.get_stats())
try:
    serve(Path("/nonexistent"))
except PluginError:
    print(gc.isenabled(), sum(generation["collections"] for generation in gc.get_stats()) - collected < 10)
"""
    assert interpreter(serve) == "True True"


def test_a_module_is_imported_without_the_contract() -> None:
    assert loaded("from nodeplug import serving", "nodeplug.contract.values", "pluggy") == []


def test_messages_are_encoded_without_the_databases_and_servers_of_pyroute2() -> None:
    unwanted = ("pyroute2.ndb", "pyroute2.iproute", "pyroute2.plan9", "pyroute2.ipdb", "pyroute2.ethtool")
    assert loaded(ENCODE, *unwanted) == []


def test_messages_are_the_same_with_all_of_pyroute2() -> None:
    assert interpreter(EVERYTHING) == interpreter("import pyroute2\n" + EVERYTHING)


def test_a_plugin_gets_all_of_pyroute2_although_messages_were_encoded_before() -> None:
    ask = "from pyroute2 import IPRoute, NetlinkError; import pyroute2.iproute as i; print(IPRoute is i.IPRoute)"
    assert interpreter(ENCODE + ask) == "True"


def test_a_plugin_finds_the_modules_of_pyroute2_below_its_name() -> None:
    ask = "import pyroute2; print(pyroute2.ndb.main.NDB.__name__, pyroute2.netlink.exceptions.NetlinkError.__name__)"
    assert interpreter(ENCODE + ask) == "NDB NetlinkError"


def test_a_name_that_pyroute2_does_not_have_is_missing_as_ever() -> None:
    ask = """
try:
    from pyroute2 import nothing_like_it
except ImportError as error:
    print("cannot import" in str(error))
"""
    assert interpreter(ENCODE + ask) == "True"


def test_threads_that_ask_for_pyroute2_at_the_same_time_all_get_it() -> None:
    ask = """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
start = Barrier(8)
def ask(number):
    import pyroute2
    start.wait()
    return pyroute2.IPRoute if number % 2 else pyroute2.NDB
with ThreadPoolExecutor(8) as threads:
    print(sorted(one.__name__ for one in threads.map(ask, range(8))))
"""
    assert interpreter(ENCODE + ask) == str(["IPRoute"] * 4 + ["NDB"] * 4)
