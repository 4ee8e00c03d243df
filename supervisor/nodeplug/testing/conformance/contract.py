"""Rules for every plugin: how it is configured, constructed, started and stopped.

Owns: the parts of `hookspecs` that concern every kind of claim.
Refuses: to load the plugin into this process: a rehearsal and the daemon do, in processes of their own.
"""

from typing import Final

from nodeplug.testing.conformance.examination import Examination
from nodeplug.testing.conformance.rehearsal import Rehearsal
from nodeplug.testing.conformance.report import few
from nodeplug.testing.conformance.rules import rule
from nodeplug.testing.conformance.verdict import Broken, NotApplicable

_HOOKS: Final = "the contract of hooks"
_LIFE: Final = "the contract of the life cycle"


@rule("contract", _HOOKS, "Make the class importable, and its constructor take `(config, host)`.")
def plugin_is_constructed(exam: Examination) -> str:
    """The class is found, its configuration is valid, and the constructor returns."""
    seen = exam.rehearsal()
    if "rehearsal" in seen.acts:
        seen.act("rehearsal").succeed()
    seen.act("import").succeed()
    return f"constructed in {seen.act('construct').succeed().seconds * 1e3:.0f} ms"


def _constructed(exam: Examination) -> Rehearsal:
    """Return the rehearsal of a plugin that could be constructed; another rule reports why one could not."""
    seen = exam.rehearsal()
    act = seen.act("construct")
    if act.hung or act.error is not None:
        raise NotApplicable("the plugin cannot be constructed")
    return seen


def _examined(exam: Examination) -> Rehearsal:
    """Return the rehearsal of a plugin whose hooks and claims are right; other rules report what is wrong."""
    seen = _constructed(exam)
    act = seen.act("examine")
    if act.hung or act.error is not None:
        raise NotApplicable("the plugin cannot be loaded")
    return seen


def _to_its_end(seen: Rehearsal) -> str:
    """Return what a rule says that found nothing wrong in a whole life; a part of one proves nothing."""
    if seen.hung is not None:
        raise NotApplicable(seen.why_short)
    return ""


@rule("contract", "the configuration", 'Set `model_config = ConfigDict(extra="forbid")` in the class `Config`.')
def unknown_keys_are_refused(exam: Examination) -> str:
    """The configuration refuses a key that it does not know, so that a misspelt one is found."""
    if exam.rehearsal().act("unknown key").error is None:
        raise Broken("a configuration with the key 'conformance-unknown-key' was accepted")
    return ""


@rule("contract", "the daemon: it waits for a constructor before other plugins start", "Move waiting into `start`.")
def constructor_returns(exam: Examination) -> str:
    """The constructor returns promptly."""
    seen = exam.rehearsal()
    act = seen.acts.get("construct") or seen.act("import")
    if act.hung:
        raise Broken(f"{act.name} had not returned after {act.seconds:.1f} s")
    return f"{act.seconds * 1e3:.0f} ms"


@rule("contract", "`nodeplug check-config` constructs plugins and never stops them", "Start threads in `start`.")
def constructor_starts_no_thread(exam: Examination) -> str:
    """The constructor starts no thread and keeps no descriptor."""
    seen = exam.rehearsal()
    seen.act("construct")
    threads = seen.document.get("constructor_threads", ())
    opened = seen.document.get("constructor_descriptors", ())
    if threads or opened:
        raise Broken(f"it left threads {few(threads) or 'none'} and descriptors {few(opened) or 'none'}")
    return ""


@rule("contract", "`nodeplug check-config` constructs plugins where no folder exists", "Create files in `start`.")
def constructor_writes_no_file(exam: Examination) -> str:
    """The constructor works without its state folder and writes nothing there."""
    seen = _constructed(exam)
    if files := seen.document.get("constructor_files"):
        raise Broken(f"it made {few(files)}")
    return ""


@rule("contract", _HOOKS, "Compare names and arguments with `nodeplug.contract.hookspecs`; the message says which one.")
def hooks_are_known(exam: Examination) -> str:
    """Every hook has a name and arguments of the contract, and one of them is `claims`."""
    return ", ".join(_constructed(exam).act("examine hooks").succeed().answer)


@rule("contract", _HOOKS, "Put `@hookimpl` before the method, or give it another name.")
def hooks_are_marked(exam: Examination) -> str:
    """Every method with the name of a hook is marked as one, or it is never called."""
    seen = _examined(exam)
    if unmarked := seen.document.get("unmarked"):
        raise Broken(f"{', '.join(unmarked)} has no @hookimpl")
    return ""


@rule(
    "contract",
    "kubelet (IsExtendedResourceName), CNI SPEC section 2, FlexVolume",
    "Do what the message says: another name, or the hook that is missing.",
)
def claims_are_valid(exam: Examination) -> str:
    """Every claim has a name that its caller accepts and the hooks that it needs, and none is returned twice."""
    _constructed(exam).act("examine").succeed()
    return ", ".join(f"{kind}:{name}" for kind, names in exam.claims.items() for name in names) or "no claims"


@rule("contract", "`nodeplug install` and the daemon ask in different processes", "Compute claims from `config` alone.")
def claims_are_stable(exam: Examination) -> str:
    """Claims are the same when called twice and in two instances."""
    seen = exam.rehearsal()
    first = [f"{kind}:{name}" for kind, name in seen.document.get("claims", ())]
    again = seen.act("claims again").succeed().answer
    second = seen.document.get("second_claims")
    if again != first:
        raise Broken(f"first {first}, then {again}")
    if second is not None and second != first:
        raise Broken(f"one instance claims {first}, another {second}")
    return ""


@rule("contract", _LIFE, "Let `start` take over or undo whatever exists.")
def second_start_succeeds(exam: Examination) -> str:
    """A new instance starts after one that was stopped, as after a reload."""
    seen = exam.rehearsal()
    seen.act("start").succeed()
    seen.act("start again").succeed()
    return ""


@rule("contract", _LIFE, "Stop may never run: remove or take over files, sockets and locks in `start`.")
def start_after_kill_succeeds(exam: Examination) -> str:
    """The plugin starts after its process was killed without a stop."""
    _constructed(exam)
    if exam.rehearsal().hung:
        raise NotApplicable(exam.rehearsal().why_short)
    seen = exam.after_kill()
    if "start" not in exam.hooks:
        seen.act("construct").succeed()
        return "it has no start"
    seen.act("start").succeed()
    return ""


@rule("contract", _LIFE, "Close what is open and forget it; succeed if nothing is.", "stop")
def second_stop_succeeds(exam: Examination) -> str:
    """A stop succeeds when repeated, and without a start before it."""
    seen = exam.rehearsal()
    seen.act("stop before start").succeed()
    seen.act("stop").succeed()
    seen.act("second stop").succeed()
    return ""


@rule("contract", _LIFE, "End threads in `stop` and join them; start them as daemon threads.")
def no_thread_outlives_stop(exam: Examination) -> str:
    """No thread of the plugin is left after stop."""
    seen = _examined(exam)
    if left := seen.document.get("left_threads"):
        raise Broken(f"left running: {few(left)}")
    return _to_its_end(seen)


@rule("contract", _LIFE, "Close in `stop` what `start` opened.")
def no_descriptor_outlives_stop(exam: Examination) -> str:
    """No run of the plugin, from construction to stop, leaves a descriptor open."""
    seen = _examined(exam)
    if "left_descriptors" not in seen.document:
        raise NotApplicable(f"the plugin had no second life: {seen.why_short}")
    if left := seen.document["left_descriptors"]:
        raise Broken(f"a second life left open: {few(left)}")
    return ""


@rule("contract", _LIFE, "Raise NotReady only for what keeps the plugin from serving, with the reason.", "health")
def healthy_after_start(exam: Examination) -> str:
    """The plugin is healthy once it has started."""
    seen = exam.rehearsal()
    return f"{seen.act('health').succeed().seconds * 1e3:.1f} ms"


@rule("contract", "`nodeplug inspect` prints it as JSON", "Return strings, numbers, lists and mappings.", "inspect")
def inspection_is_json(exam: Examination) -> str:
    """What the plugin reports about itself can be written as JSON."""
    if wrong := _examined(exam).act("inspect").succeed().answer:
        raise Broken(wrong)
    return ""


@rule("contract", "the daemon measures on a timer", "Leave out what cannot be measured now.", "metrics")
def metrics_are_measured(exam: Examination) -> str:
    """The plugin has valid metrics once it has started."""
    _examined(exam).act("metrics").succeed()
    return ""


@rule("contract", _HOOKS, "Return what `nodeplug.contract.hookspecs` says.")
def answers_have_their_types(exam: Examination) -> str:
    """Hooks return what the contract says."""
    seen = _examined(exam)
    if wrong := seen.document.get("mistyped"):
        raise Broken("; ".join(wrong))
    return _to_its_end(seen)


@rule("contract", "the errors of nodeplug", "Raise a class of `nodeplug.contract.errors` with a message.")
def errors_are_sentences(exam: Examination) -> str:
    """A hook that fails raises a PluginError, which every protocol can express."""
    seen = _constructed(exam)
    stray = [act for act in seen.acts.values() if act.stray and act.name != "unknown key"]
    if stray:
        raise Broken("; ".join(f"{act.name} raised {act.error}" for act in stray))
    return _to_its_end(seen)


@rule("contract", "the daemon: both belong to its log", "Use `host.log`.")
def nothing_is_printed(exam: Examination) -> str:
    """The plugin writes nothing to stdout or stderr."""
    seen = exam.rehearsal()
    seen.act("construct")
    for name, text in (("stdout", seen.stdout), ("stderr", seen.stderr)):
        if text:
            raise Broken(f"on {name}: {text[:200]!r}")
    return _to_its_end(seen)


@rule("contract", "the daemon", "See what the daemon says; the rules before this one often say more.")
def daemon_runs_it(exam: Examination) -> str:
    """The daemon starts the plugin, and exits with status 0 on SIGTERM."""
    if "claims" not in exam.rehearsal().document:
        raise NotApplicable(f"the plugin cannot be loaded: {exam.rehearsal().why_short}")
    node = exam.node
    status = exam.stop()
    if status != 0:
        raise Broken(f"the daemon ended with {status}: {node.log[-1000:]}")
    return ""


@rule(
    "contract",
    "the daemon's host: its network, mounts and processes are everybody's",
    "Undo in `stop` what `start` made.",
)
def nothing_is_left_after_stop(exam: Examination) -> str:
    """Starting and stopping the daemon leaves no link, mount, loop device, nftables object or process behind."""
    if "claims" not in exam.rehearsal().document:
        raise NotApplicable(f"the plugin cannot be loaded: {exam.rehearsal().why_short}")
    exam.require_passed("daemon-runs-it")
    exam.stop()
    left = exam.left_since(exam.rig.untouched, files=False)
    if left := [*left, *(f"+ process {command}" for command in exam.left_processes())]:
        raise Broken(few(left))
    return ""
