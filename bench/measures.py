"""Which figures a table shows, in its order, with what they are in words and the limit that each has.

Owns: these tables. Refuses: to compute or to draw.
"""

from typing import Final

VALUES: Final = {
    "shim_p50_ms": "entrypoint, daemon and back, without work (STATUS)",
    "register_to_first_list_p50_ms": "Register until kubelet has the first list",
    "allocate_p50_ms": "Allocate",
    "preferred_allocation_p50_ms": "GetPreferredAllocation",
    "health_to_stream_p50_ms": "a device is gone until kubelet has the list that says so",
}
DAEMON: Final = {
    "registered_after_start_s": ("start of the daemon until kubelet has the first list, s", 0.0),
    "listed_after_crash_s": ("the same after kill -9: until kubelet has the last list, s", 0.3),
    "default_memory_mib": (
        "memory (Pss) of the default installation with all processes, right after its start, MiB",
        80.0,
    ),
    "repair_p50_ms": (
        "somebody removes a bridge, its address, its route or the rules until they are back, ms, p50",
        0.0,
    ),
    "repair_p99_ms": ("the same, p99", 1000.0),
    "daemon_rss_mib": ("resident memory of the daemon after all these calls, MiB", 0.0),
    "daemon_idle_cpu_percent": ("CPU while nobody calls, %", 0.0),
}
"""Figures of the daemon itself, with their limits; 0 means none."""

GPU: Final = {
    "gpu_first_list_ms": ("8 cards, 640 units: the first list after a stream opens, p99", 50),
    "gpu_prefer_16000_ms": ("GetPreferredAllocation among 16,000 units, p50", 25),
    "gpu_allocate_p99_ms": ("Allocate beside 100 open streams, p99", 5),
    "gpu_health_to_streams_ms": ("a card is lost until 100 streams say so, p50", 100),
    "gpu_loop_longest_step_ms": ("the longest step of the daemon's event loop meanwhile", 20),
}

PROCESSES: Final = {
    "allocate_process_price_ms": ("Allocate of eight ids, more than in a thread, ms", 0.3),
    "add_process_price_ms": ("ADD, more than in a thread, ms", 0.3),
    "mount_process_price_ms": ("mount, more than in a thread, ms", 0.3),
    "allocate_long_process_price_ms": ("Allocate of eight ids out of a list of 4000, more than in a thread, ms", 0.0),
    "first_list_thread_ms": ("a section is added until kubelet has the first list, in a thread, ms", 0.0),
    "first_list_process_ms": ("the same in a process, ms", 0.0),
    "first_list_process_price_ms": ("the same, more than in a thread, ms", 0.0),
    "process_pss_mib": ("memory of a process (Pss), MiB", 25.0),
    "neighbour_process_p99_ratio": ("a neighbour's p99 while a plugin in a process burns a core", 1.15),
    "neighbour_thread_p99_ratio": ("the same while a plugin in a thread does", 0.0),
}
"""Figures of plugins in processes, with their limits; 0 means none. Ratios are to an unrelated busy program."""

VOLUMES: Final = {
    "csi_publish_p50_ms": ("publish over CSI, p50", 10.0),
    "csi_publish_p99_ms": ("publish over CSI, p99", 0.0),
    "flex_mount_p50_ms": ("the same volume mounted over FlexVolume, p50", 0.0),
    "flex_mount_p99_ms": ("the same volume mounted over FlexVolume, p99", 0.0),
    "csi_publish_price_ms": ("publish over CSI, more than the mount over FlexVolume", 0.0),
    "csi_unpublish_p50_ms": ("unpublish over CSI, p50", 0.0),
    "csi_unpublish_p99_ms": ("unpublish over CSI, p99", 0.0),
    "flex_unmount_p50_ms": ("unmount over FlexVolume, p50", 0.0),
    "flex_unmount_p99_ms": ("unmount over FlexVolume, p99", 0.0),
}
"""Figures of a staged volume over both fronts, in the daemon's part of a call, with their limits; 0 means none."""

CLAIMS: Final = {
    "claim_to_bound_s": ("from a claim of 32 MiB (ext4) to Bound, s", 1.0),
    "standard_claim_to_bound_s": ("the same by the standard provisioner, in turn, s", 0.0),
    "claim_to_bound_ratio": ("ours by the standard one", 0.0),
    "volume_from_nothing_ms": ("CreateVolume and publish of 1 GiB (xfs), ms", 150.0),
    "memory_without_mib": ("memory (Pss) of a daemon without plugins, MiB", 0.0),
    "memory_with_mib": ("the same with five drivers and the provisioner, each with a volume under a pod, MiB", 0.0),
    "memory_more_mib": ("what these add, MiB", 60.0),
    "standard_provisioner_mib": ("the standard provisioner of one driver (Pss), without its other sidecars, MiB", 0.0),
}
"""Figures of claims, medians, with their limits; 0 means none."""

EXTENDERS: Final = {
    "process_filter_p50_ms": ("filter over 500 nodes by name, ms", 0.0),
    "process_filter_p99_ms": ("the same, p99, ms", 20.0),
    "process_prioritize_p50_ms": ("prioritize, ms", 0.0),
    "process_prioritize_p99_ms": ("the same, p99, ms", 20.0),
    "process_pod_ms": ("filter and prioritize of one pod, mean of many in a row, ms (5 are 200 pods a second)", 5.0),
    "process_daemon_cpu_ms": ("of the processor in the daemon for each call, ms", 0.0),
    "process_filter_whole_p50_ms": ("filter over 500 whole nodes, 15 MB, ms", 0.0),
    "thread_filter_p50_ms": ("with the plugin in a thread, nearly all the daemon's own: filter, ms", 0.0),
    "thread_filter_p99_ms": ("the same, p99, ms", 20.0),
    "thread_pod_ms": ("filter and prioritize of one pod, mean, ms", 5.0),
    "thread_daemon_cpu_ms": ("of the processor in the daemon for each call, ms", 0.0),
    "thread_filter_whole_p50_ms": ("filter over 500 whole nodes, ms", 0.0),
    "cards_filter_p50_ms": ("gpu-extender in a cluster of 5,000 nodes of 8 cards: filter over 500 by name, ms", 0.0),
    "cards_filter_p99_ms": ("the same, p99, ms", 20.0),
    "cards_prioritize_p50_ms": ("prioritize, ms", 0.0),
    "cards_prioritize_p99_ms": ("the same, p99, ms", 20.0),
    "cards_filter_changing_p99_ms": ("filter, p99, where 20 of them say something new before each call, ms", 20.0),
    "cards_ms_per_pod": ("filter of one pod, mean of many in a row, ms (5 are 200 pods a second)", 5.0),
    "cards_seen_ms": ("from a node's word to an answer that has it, the longest of ten, ms", 2000.0),
    "cards_memory_mib": ("memory of the extender with 5,000 nodes (Pss), MiB", 200.0),
}
"""Figures of a scheduler extender that answers at once, with their limits; 0 means none."""

CLAIMED: Final = {
    "published_p50_ms": ("from the start of a daemon until 640 units of 8 cards are in slices, ms", 1000.0),
    "prepare_p50_ms": ("NodePrepareResources of one claim, its durable record and CDI spec included, ms", 20.0),
    "prepare_p99_ms": ("the same, p99, ms", 0.0),
    "unprepare_p50_ms": ("NodeUnprepareResources, ms", 0.0),
    "told_p99_ms": ("from the fault of a card to the taint in its slice, the longest, ms", 300.0),
    "quiet_requests": ("requests to the API server of a quiet node in 5 s, the watch aside", 0.0),
}
"""Figures of cards by claims, with their limits; 0 means none."""

RELOADING: Final = {
    "slowest_p50_ms": ("the slowest admission of a reload, ms", 100.0),
    "slowest_p90_ms": ("the same, p90 of the reloads, ms", 0.0),
    "slowest_of_all_ms": ("the slowest of all, ms", 100.0),
    "rest_p50_ms": ("an admission at rest, ms", 0.0),
    "rest_p99_ms": ("the same, p99, ms", 0.0),
    "reload_p50_ms": ("from SIGHUP until the changed section serves, ms", 0.0),
}
"""Figures of reloads while cards are held, with their limits; 0 means none."""

NETWORKS: Final = {
    "pod_add_p50_ms": ("ADD of a pod with three networks, one execution, ms", 0.0),
    "reference_pod_add_p50_ms": ("the same networks by three of the reference's bridge, in turn, ms", 0.0),
    "pod_add_ratio": ("ours by the reference's", 1.0),
    "pod_del_p50_ms": ("DEL, ms", 0.0),
    "reference_pod_del_p50_ms": ("three of the reference's, ms", 0.0),
    "pod_del_ratio": ("ours by the reference's", 1.0),
    "without_mib": ("memory (Pss) of a daemon with the plugins and without `[networks]`, MiB", 0.0),
    "with_mib": ("the same with `[networks]`, MiB", 0.0),
    "many_mib": ("the same with ten thousand NetworkAttachmentDefinitions, MiB", 0.0),
    "many_known_s": ("from the start of that daemon until all are known and kept for the next start, s", 0.0),
}
"""Figures of networks as objects, medians, with their limits; 0 means none."""

WORST_INPUTS: Final = {
    "beside_nobody_p50_ms": ("ADD of a neighbour while nobody sends anything, p50, ms", 0.0),
    "beside_nobody_p99_ms": ("the same, p99", 0.0),
    "beside_programs_p99_ms": ("beside two unrelated busy programs, p99", 0.0),
    "beside_bodies_p99_ms": ("beside eight callers with bodies of empty lists for an extender, p99", 1000.0),
    "beside_scrapes_p99_ms": ("beside eight readers of `/metrics`, p99", 1000.0),
    "beside_stdout_p99_ms": ("beside four calls of a foreign program with an endless stdout, p99", 1000.0),
    "beside_stderr_p99_ms": ("beside four with an endless stderr, p99", 1000.0),
    "beside_devices_p99_ms": ("beside four calls of a network whose `resolvConf` is `/dev/zero`, p99", 1000.0),
    "beside_folders_p99_ms": ("beside four mounts of an image with a path of sixty thousand folders, p99", 1000.0),
    "beside_links_p99_ms": ("beside four mounts of an image with 200,000 hard links to a file, p99", 1000.0),
    "beside_answers_p99_ms": ("beside an API server that answers with 60 MiB of empty lists, p99", 1000.0),
    "memory_before_mib": ("resident memory of the daemon before all this, MiB", 0.0),
    "memory_most_mib": ("the same after a turn, at most: answers of 60 MiB to several requests at once", 0.0),
}
"""Figures of a neighbour of the worst inputs, with their limits; 0 means none."""

CHAIN: Final = {
    f"{verb}{burst}": f"chain_{verb.lower()}{name}"
    for burst, name in (("", "_p50_ms"), (", 16 at once, chains per second", "_16_per_s"))
    for verb in ("ADD", "CHECK", "DEL")
}
GROWTH: Final = {
    "lives_first_p50_ms": ("a thousand attachments one after another: ADD, the first hundred, p50", 0.0),
    "lives_last_p50_ms": ("ADD, the last hundred, p50", 0.0),
    "lives_growth": ("the last hundred by the first", 1.3),
    "attachments_first_p50_ms": ("a thousand attachments at once: ADD, the first hundred, p50", 0.0),
    "attachments_last_p50_ms": ("ADD, the last hundred, p50", 0.0),
    "attachments_growth": ("the last hundred by the first", 1.3),
    "kernel_first_p50_ms": ("the kernel alone: the first hundred of a thousand pairs at once, p50", 0.0),
    "kernel_last_p50_ms": ("the last hundred, p50", 0.0),
    "kernel_growth": ("the last hundred by the first", 0.0),
    "held_add_p50_ms": ("ADD where 10,000 addresses are held, p50", 4.0),
    "held_status_p50_ms": ("STATUS where 10,000 addresses are held, p50", 10.0),
}
"""What grows with a node, with limits; 0 means none."""
