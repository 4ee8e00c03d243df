"""From FlexVolume to CSI: what an object becomes, what is recorded, and how manifests change."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.kubeapi.scripted import Answer, Scripted, refuse, respond

from nodeplug import InvalidRequest
from nodeplug.migration import records
from nodeplug.migration.exchange import Exchange
from nodeplug.migration.inline import Target, rewrite
from nodeplug.migration.volumes import affinity_to, as_csi, portable

TARGETS = {
    "nodeplug/tmpfs": Target("tmpfs.nodeplug", inline=True),
    "nodeplug/loopfile": Target("loopfile.nodeplug", inline=False),
}


def volume(**flex: Any) -> dict[str, Any]:
    """A PersistentVolume of FlexVolume as an API server has it."""
    return {
        "metadata": {
            "name": "data",
            "uid": "old",
            "resourceVersion": "7",
            "labels": {"a": "b"},
            "annotations": {
                "pv.kubernetes.io/bound-by-controller": "yes",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            },
            "finalizers": ["kubernetes.io/pv-protection"],
        },
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": "default", "name": "c", "uid": "claim", "resourceVersion": "5"},
            "flexVolume": {"driver": "nodeplug/loopfile", "options": {"name": "data"}, **flex},
            "mountOptions": ["noatime"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "fast",
            "volumeMode": "Filesystem",
        },
        "status": {"phase": "Bound"},
    }


def test_everything_but_the_source_stays() -> None:
    made, before = as_csi(volume(), "loopfile.nodeplug", "data"), volume()
    assert made["spec"].pop("csi") == {
        "driver": "loopfile.nodeplug",
        "volumeHandle": "data",
        "volumeAttributes": {"name": "data"},
    }
    del before["spec"]["flexVolume"], before["spec"]["claimRef"]["resourceVersion"]
    assert made["spec"] == before["spec"]
    assert made["metadata"] == {
        "name": "data",
        "labels": {"a": "b"},
        "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"},
    }


def test_filesystem_read_only_and_secret_go_along() -> None:
    made = as_csi(volume(fsType="xfs", readOnly=True, secretRef={"name": "s"}), "d", "h")["spec"]["csi"]
    assert (made["fsType"], made["readOnly"]) == ("xfs", True)
    assert made["nodePublishSecretRef"] == {"name": "s", "namespace": "default"}
    other = as_csi(volume(secretRef={"name": "s", "namespace": "n"}), "d", "h")["spec"]["csi"]
    assert other["nodePublishSecretRef"] == {"name": "s", "namespace": "n"}


def test_options_of_kubelet_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"kubernetes\.io/fsType are kubelet's own"):
        as_csi(volume(options={"kubernetes.io/fsType": "x"}), "d", "h")


def test_a_secret_of_no_namespace_is_refused_where_nothing_says_it() -> None:
    lonely = volume(secretRef={"name": "s"})
    del lonely["spec"]["claimRef"]
    with pytest.raises(InvalidRequest, match="no namespace"):
        as_csi(lonely, "d", "h")


def test_a_volume_that_names_no_node_gets_one_and_another_keeps_its_own() -> None:
    here = affinity_to({"metadata": {"name": "n", "labels": {"kubernetes.io/hostname": "host"}}})
    assert as_csi(volume(), "d", "h", here)["spec"]["nodeAffinity"] == here
    placed = volume()
    placed["spec"]["nodeAffinity"] = {"required": {"nodeSelectorTerms": []}}
    assert as_csi(placed, "d", "h", here)["spec"]["nodeAffinity"] == placed["spec"]["nodeAffinity"]
    with pytest.raises(InvalidRequest, match="no label"):
        affinity_to({"metadata": {"name": "n"}})


def test_whoever_deleted_the_flexvolume_is_not_asked_to_delete_the_other() -> None:
    provisioned = volume()
    provisioned["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] = "flex-provisioner"
    assert as_csi(provisioned, "d", "h")["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] == "d"


def test_what_is_saved_is_not_the_object_that_is_changed() -> None:
    before = volume()
    as_csi(before, "d", "h")["spec"]["capacity"]["storage"] = "2Gi"
    assert before == volume()
    assert "uid" not in portable(before)["metadata"]


# --- records


def test_what_was_begun_is_saved_as_it_was_first(tmp_path: Path) -> None:
    first = records.save(tmp_path, volume(), {"spec": 1}, {})
    assert records.save(tmp_path, volume(), {"spec": 2}, {}).after == {"spec": 2}  # nothing was changed yet
    first.step(records.FIRST)
    assert records.save(tmp_path, volume(), {"spec": 3}, {}).after == {"spec": 2}
    other = volume()
    other["metadata"]["uid"] = "new"
    with pytest.raises(InvalidRequest, match="earlier migration of a volume of that name"):
        records.save(tmp_path, other, {}, {})


def test_records_are_private_and_read_again_by_file_or_folder(tmp_path: Path) -> None:
    saved = records.save(tmp_path / "new", volume(), {"spec": 1}, {"c": 1})
    assert (saved.folder / "saved.json").stat().st_mode & 0o777 == 0o600
    for place in (tmp_path / "new", saved.folder, saved.folder / "saved.json"):
        assert records.all_below(place) == [saved]


def test_a_migration_that_was_undone_can_be_done_again(tmp_path: Path) -> None:
    saved = records.save(tmp_path, volume(), {}, {})
    saved.step(records.FIRST)
    assert saved.put_away().is_dir()
    assert records.recorded(tmp_path) == []
    again = volume()
    again["metadata"]["uid"] = "new"
    assert records.save(tmp_path, again, {}, {}).before["metadata"]["uid"] == "new"


MADE = ["begun", "deleting", "deleted", "created", "bound", "done"]


@pytest.mark.parametrize(
    ("did", "back", "removed"),
    [
        (MADE[:1], False, False),
        (MADE[:3], False, True),
        (MADE[:4], False, False),
        (MADE, True, False),
        ([*MADE, "undo-deleting", "undo-deleted"], True, True),
        ([*MADE, "undo-deleting", "undo-deleted", "undo-created"], True, False),
    ],
)
def test_a_volume_that_no_step_has_removed_is_not_made_again(
    tmp_path: Path, did: list[str], back: bool, removed: bool
) -> None:
    saved = records.save(tmp_path, volume(), as_csi(volume(), "loopfile.nodeplug", "data"), {})
    for step in did:
        saved.step(step)

    async def first_step() -> str:
        claim = respond(200, {"metadata": {"uid": "claim"}})
        answers: list[Answer] = [refuse(404, "NotFound"), claim, respond(201, volume())]
        async with Scripted(answers) as server, server.client() as client:
            return await anext(Exchange(client, saved, back).steps())

    if removed:
        assert asyncio.run(first_step()) == "created"
    else:
        with pytest.raises(InvalidRequest, match=r"none of the steps in .* removed it: it was deleted on purpose"):
            asyncio.run(first_step())


def test_a_volume_is_done_when_its_last_step_is_written_down(tmp_path: Path) -> None:
    saved = records.save(tmp_path, volume(), as_csi(volume(), "loopfile.nodeplug", "data"), {})
    there, back = (Exchange(None, saved, back) for back in (False, True))  # type: ignore[arg-type]
    for step in MADE[:-1]:
        saved.step(step)
    assert (there.is_done, back.is_done) == (False, False)
    saved.step("done")
    assert (there.is_done, back.is_done) == (True, False)
    saved.step("undo-done")
    assert back.is_done


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": 2, "before": {}, "after": {}, "claim": {}}'])
def test_a_record_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "saved.json").write_text(text)
    with pytest.raises(InvalidRequest, match=r"saved\.json"):
        records.all_below(tmp_path)


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no records of a migration"):
        records.all_below(tmp_path)


# --- manifests

MANIFEST = """\
# what the pod needs
apiVersion: apps/v1
kind: Deployment
spec:
    template:
        spec:
            containers: [{name: a, image: "x"}]   # odd indentation stays
            volumes:
            - name: cache
              flexVolume:
                  driver: "nodeplug/tmpfs"  # the driver
                  fsType: ''
                  options: {size: 64Mi}     # as much as it needs
                  secretRef:
                      name: s
            - {name: plain, emptyDir: {}}
---
kind: Pod
spec:
  volumes:
  - {name: other, "flexVolume": {driver: nodeplug/tmpfs, options: {size: 1Mi}}}
"""


def test_only_the_words_that_differ_are_changed() -> None:
    made = rewrite(MANIFEST, TARGETS)
    lines = list(zip(MANIFEST.splitlines(), made.text.splitlines(), strict=True))
    assert [new.strip() for old, new in lines if old != new] == [
        "csi:",
        'driver: "tmpfs.nodeplug"  # the driver',
        "volumeAttributes: {size: 64Mi}     # as much as it needs",
        "nodePublishSecretRef:",
        '- {name: other, "csi": {driver: tmpfs.nodeplug, volumeAttributes: {size: 1Mi}}}',
    ]
    assert (made.changed, made.left) == (2, ())


def test_the_result_means_what_it_should() -> None:
    first, second = yaml.safe_load_all(rewrite(MANIFEST, TARGETS).text)
    assert first["spec"]["template"]["spec"]["volumes"][0]["csi"] == {
        "driver": "tmpfs.nodeplug",
        "fsType": "",
        "volumeAttributes": {"size": "64Mi"},
        "nodePublishSecretRef": {"name": "s"},
    }
    assert second["spec"]["volumes"][0]["csi"]["volumeAttributes"] == {"size": "1Mi"}


def test_json_is_rewritten_too() -> None:
    pod = {"kind": "Pod", "spec": {"volumes": [{"name": "é", "flexVolume": {"driver": "nodeplug/tmpfs"}}]}}
    for text in (json.dumps(pod), json.dumps(pod, ensure_ascii=False, indent=2)):
        found = json.loads(rewrite(text, TARGETS).text)
        assert found["spec"]["volumes"] == [{"name": "é", "csi": {"driver": "tmpfs.nodeplug"}}]


@pytest.mark.parametrize(
    ("flex", "said"),
    [
        ("{driver: nodeplug/loopfile}", "no inline CSI volumes"),
        ("{driver: acme/other}", "no enabled plugin serves acme/other"),
        ("{options: {}}", "no driver"),
        ("text", "no mapping"),
        ("{driver: nodeplug/tmpfs, options: {kubernetes.io/fsGroup: '1'}}", "kubelet's own"),
        ("{driver: nodeplug/tmpfs, new: 1}", "unknown field new"),
    ],
)
def test_what_cannot_be_rewritten_stays_and_is_told_with_its_line(flex: str, said: str) -> None:
    text = f"kind: Pod\nspec:\n  volumes:\n  - name: a\n    flexVolume: {flex}\n"
    made = rewrite(text, TARGETS)
    assert made.text == text
    assert made.left[0].startswith("line 4: ")
    assert said in made.left[0]


def test_an_anchor_is_rewritten_once() -> None:
    text = "volumes: &v\n- name: a\n  flexVolume: {driver: nodeplug/tmpfs}\nagain:\n  volumes: *v\n"
    assert rewrite(text, TARGETS).text == text.replace("flexVolume", "csi").replace("nodeplug/tmpfs", "tmpfs.nodeplug")


def test_a_persistent_volume_and_a_word_in_a_text_stay() -> None:
    text = "kind: PersistentVolume\nspec:\n  flexVolume: {driver: nodeplug/tmpfs}\n"
    text += "note: |\n  volumes:\n  - flexVolume: x\n"
    assert rewrite(text, TARGETS).text == text


def test_a_template_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidRequest, match="line 3 is not YAML; a template has to be rendered first"):
        rewrite("a: 1\n{{- if .Values.x }}\nb: 2\n", TARGETS)
