"""Rules for every plugin: how it is configured, constructed, started and stopped.

Owns: the contract of `hookspecs` as far as it concerns no kind of claim.
Refuses: to load the plugin into this process: a rehearsal and the daemon do, in processes of their own.
"""

from typing import Final

from nodeplug.testing.conformance.rehearsal import Rehearsal
from nodeplug.testing.conformance.report import few
from nodeplug.testing.conformance.rules import rule
from nodeplug.testing.conformance.stage import Stage
from nodeplug.testing.conformance.verdict import Broken, NotApplicable

_HOOKS: Final = "the contract of hooks"
_LIFE: Final = "the contract of the life cycle"


@rule("contract", _HOOKS, "Make the class importable, and its constructor take `(config, host)`.")
def plugin_is_constructed(stage: Stage) -> str:
    """The class is found, its configuration is valid, and the constructor answers."""
    seen = stage.rehearsal()
    if "rehearsal" in seen.acts:
        seen.act("rehearsal").succeed()
    seen.act("import").succeed()
    return f"constructed in {seen.act('construct').succeed().seconds * 1e3:.0f} ms"


def _constructed(stage: Stage) -> Rehearsal:
    """Return the rehearsal of a plugin that could be constructed; another rule tells why one could not."""
    seen = stage.rehearsal()
    act = seen.act("construct")
    if act.hung or act.error is not None:
        raise NotApplicable("the plugin cannot be constructed")
    return seen


def _examined(stage: Stage) -> Rehearsal:
    """Return the rehearsal of a plugin whose hooks and claims are right; other rules tell what is wrong."""
    seen = _constructed(stage)
    act = seen.act("examine")
    if act.hung or act.error is not None:
        raise NotApplicable("the plugin cannot be loaded")
    return seen


@rule("contract", "the configuration", 'Set `model_config = ConfigDict(extra="forbid")` in the class `Config`.')
def unknown_keys_are_refused(stage: Stage) -> str:
    """The configuration refuses a key that it does not know, so that a misspelt one is found."""
    if stage.rehearsal().act("unknown key").error is None:
        raise Broken("a configuration with the key 'conformance-unknown-key' was accepted")
    return ""


@rule("contract", "the daemon: it waits for a constructor before other plugins start", "Move waiting into `start`.")
def constructor_returns(stage: Stage) -> str:
    """The constructor returns promptly."""
    seen = stage.rehearsal()
    act = seen.acts.get("construct") or seen.act("import")
    if act.hung:
        raise Broken(f"{act.name} had not come back after {act.seconds:.1f} s")
    return f"{act.seconds * 1e3:.0f} ms"


@rule("contract", "`nodeplug check-config` constructs plugins and never stops them", "Begin threads in `start`.")
def constructor_starts_no_thread(stage: Stage) -> str:
    """The constructor starts no thread and keeps no descriptor."""
    seen = stage.rehearsal()
    seen.act("construct")
    threads = seen.document.get("constructor_threads", ())
    opened = seen.document.get("constructor_descriptors", ())
    if threads or opened:
        raise Broken(f"it left threads {few(threads) or 'none'} and descriptors {few(opened) or 'none'}")
    return ""


@rule("contract", "`nodeplug check-config` constructs plugins where no folder exists", "Make files in `start`.")
def constructor_writes_no_file(stage: Stage) -> str:
    """The constructor works without its state folder and writes nothing there."""
    seen = _constructed(stage)
    if files := seen.document.get("constructor_files"):
        raise Broken(f"it made {few(files)}")
    return ""


@rule("contract", _HOOKS, "Compare names and arguments with `nodeplug.contract.hookspecs`; the message says which one.")
def hooks_are_known(stage: Stage) -> str:
    """Every hook has a name and arguments that the contract knows, and one of them is `claims`."""
    return ", ".join(_constructed(stage).act("examine hooks").succeed().answer)


@rule("contract", _HOOKS, "Put `@hookimpl` before the method, or give it another name.")
def hooks_are_marked(stage: Stage) -> str:
    """Every method with the name of a hook is marked as one, or it is never called."""
    seen = _examined(stage)
    if unmarked := seen.document.get("unmarked"):
        raise Broken(f"{', '.join(unmarked)} has no @hookimpl")
    return ""


@rule(
    "contract",
    "kubelet (IsExtendedResourceName), CNI SPEC section 2, FlexVolume",
    "Do what the message says: another name, or the hook that is missing.",
)
def claims_are_valid(stage: Stage) -> str:
    """Every claim has a name that its caller accepts and the hooks that it needs, and none is made twice."""
    _constructed(stage).act("examine").succeed()
    return ", ".join(f"{kind}:{name}" for kind, names in stage.claims.items() for name in names) or "no claims"


@rule("contract", "`nodeplug install` and the daemon ask in different processes", "Compute claims from `config` alone.")
def claims_are_stable(stage: Stage) -> str:
    """Claims are the same when asked twice and in two instances."""
    seen = stage.rehearsal()
    first = [f"{kind}:{name}" for kind, name in seen.document.get("claims", ())]
    again = seen.act("claims again").succeed().answer
    second = seen.document.get("second_claims")
    if again != first:
        raise Broken(f"first {first}, then {again}")
    if second is not None and second != first:
        raise Broken(f"one instance claims {first}, another {second}")
    return ""


@rule("contract", _LIFE, "Let `start` adopt or undo whatever is there.")
def second_start_succeeds(stage: Stage) -> str:
    """A new instance starts after one that was stopped, as after a reload."""
    seen = stage.rehearsal()
    seen.act("start").succeed()
    seen.act("start again").succeed()
    return ""


@rule("contract", _LIFE, "Stop may never run: remove or adopt files, sockets and locks in `start`.")
def start_after_kill_succeeds(stage: Stage) -> str:
    """The plugin starts after its process was killed without a stop."""
    _constructed(stage)
    if stage.rehearsal().hung:
        raise NotApplicable(stage.rehearsal().why_short)
    seen = stage.after_kill()
    if "start" not in stage.hooks:
        seen.act("construct").succeed()
        return "it has no start"
    seen.act("start").succeed()
    return ""


@rule("contract", _LIFE, "Close what is open and forget it; succeed when nothing is.", "stop")
def second_stop_succeeds(stage: Stage) -> str:
    """A stop succeeds when repeated, and without a start before it."""
    seen = stage.rehearsal()
    seen.act("stop before start").succeed()
    seen.act("stop").succeed()
    seen.act("second stop").succeed()
    return ""


@rule("contract", _LIFE, "End threads in `stop` and join them; start them as daemon threads.")
def no_thread_outlives_stop(stage: Stage) -> str:
    """No thread of the plugin is left after stop."""
    seen = _examined(stage)
    if left := seen.document.get("left_threads"):
        raise Broken(f"left running: {few(left)}")
    return ""


@rule("contract", _LIFE, "Close in `stop` what `start` opened.")
def no_descriptor_outlives_stop(stage: Stage) -> str:
    """No life of the plugin, from construction to stop, leaves a descriptor open."""
    seen = _examined(stage)
    if "left_descriptors" not in seen.document:
        raise NotApplicable(f"the plugin had no second life: {seen.why_short}")
    if left := seen.document["left_descriptors"]:
        raise Broken(f"a second life left open: {few(left)}")
    return ""


@rule("contract", _LIFE, "Raise NotReady only for what keeps the plugin from serving, with the reason.", "health")
def healthy_after_start(stage: Stage) -> str:
    """The plugin is healthy once it has started."""
    seen = stage.rehearsal()
    return f"{seen.act('health').succeed().seconds * 1e3:.1f} ms"


@rule("contract", "`nodeplug inspect` prints it as JSON", "Answer texts, numbers, lists and mappings.", "inspect")
def inspection_is_json(stage: Stage) -> str:
    """What the plugin tells about itself can be written as JSON."""
    if wrong := _examined(stage).act("inspect").succeed().answer:
        raise Broken(wrong)
    return ""


@rule("contract", "the daemon measures on a timer", "Leave out what cannot be measured now.", "metrics")
def metrics_are_measured(stage: Stage) -> str:
    """The plugin can be measured once it has started."""
    _examined(stage).act("metrics").succeed()
    return ""


@rule("contract", _HOOKS, "Return what `nodeplug.contract.hookspecs` says.")
def answers_have_their_types(stage: Stage) -> str:
    """Hooks answer what the contract says, and nothing where it says nothing."""
    seen = _examined(stage)
    if wrong := seen.document.get("mistyped"):
        raise Broken("; ".join(wrong))
    return ""


@rule("contract", "the errors of nodeplug", "Raise a class of `nodeplug.contract.errors` with a sentence.")
def errors_are_sentences(stage: Stage) -> str:
    """A hook that fails raises a PluginError, which every caller is told in its own words."""
    seen = _constructed(stage)
    stray = [act for act in seen.acts.values() if act.stray and act.name != "unknown key"]
    if stray:
        raise Broken("; ".join(f"{act.name} raised {act.error}" for act in stray))
    return ""


@rule("contract", "the daemon: both belong to its log", "Use `host.log`.")
def nothing_is_printed(stage: Stage) -> str:
    """The plugin writes nothing to stdout or stderr."""
    seen = stage.rehearsal()
    seen.act("construct")
    for name, text in (("stdout", seen.stdout), ("stderr", seen.stderr)):
        if text:
            raise Broken(f"on {name}: {text[:200]!r}")
    return ""


@rule("contract", "the daemon", "See what the daemon says; the rules before this one often tell more.")
def daemon_runs_it(stage: Stage) -> str:
    """The daemon starts the plugin, and ends with status 0 when asked to."""
    if "claims" not in stage.rehearsal().document:
        raise NotApplicable(f"the plugin cannot be loaded: {stage.rehearsal().why_short}")
    node = stage.node
    status = stage.stop()
    if status != 0:
        raise Broken(f"the daemon ended with {status}: {node.log[-1000:]}")
    return ""


@rule("contract", "the daemon's hosts share one network and one mount table", "Undo in `stop` what `start` made.")
def nothing_is_left_after_stop(stage: Stage) -> str:
    """Starting and stopping the daemon leaves no link, mount, loop device or nftables object behind."""
    if "claims" not in stage.rehearsal().document:
        raise NotApplicable(f"the plugin cannot be loaded: {stage.rehearsal().why_short}")
    stage.require_passed("daemon-runs-it")
    stage.stop()
    if left := stage.left_since(stage.untouched, files=False):
        raise Broken(few(left))
    return ""
