"""Scripts as users write them: each as the table says, bit for bit that of torch alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import scenarios
import scripts_check
import torch
import torch.distributed as dist
from scripts.place import Place, net, sgd, train_step
from scripts.table import ATTACHED, OWN, SCRIPTS, Script
from scripts_check import Ended, Verdict
from torch.nn.parallel import DistributedDataParallel as DDP

import pactrain

DOCS = Path(__file__).parents[3] / "docs"
HEAD = "| script | with PacTrain | test |\n|---|---|---|\n"


def in_table(script):
    marks = [pytest.mark.nightly] if script.nightly else []
    return pytest.param(script, id=script.name, marks=marks)


@pytest.mark.parametrize("script", [in_table(script) for script in SCRIPTS])
def test_script(cluster, tmp_path, script):
    verdict = scripts_check.check(cluster, script, tmp_path)
    assert verdict.expected, f"{verdict.kind}: {verdict.text}"


def test_the_user_guide_has_these_tables():
    _, *tables = (DOCS / "scripts.md").read_text().split(HEAD)
    lines = [table.partition("\n\n")[0].splitlines() for table in tables]
    assert lines == [[script.line for script in scripts] for scripts in (ATTACHED, OWN)]


def resume(talk, blocks, folder):
    """Each block as on the page; where it finds a checkpoint that is loaded, else made."""
    zeros = []
    for number, block in enumerate(blocks):
        file = Path(folder) / f"{number}.pt"
        saved = torch.load(file) if file.exists() else None
        names = {"model": net(seed=1 if saved else 0), "saved": saved, "torch": torch}
        exec(block, names | {"pactrain": pactrain, "DistributedDataParallel": DDP}, names)
        model, session = names["model"], names["session"]
        optimizer = sgd(model)
        if saved:
            optimizer.load_state_dict(saved["optimizer"])
        for step in range(12):
            train_step(names["ddp"], optimizer, scenarios.batch(talk, step))
        if saved:
            before = model[2].weight_mask if hasattr(model[2], "weight_mask") else None
            before = saved["model"]["2.weight"] if before is None else before
            zeros.append(((model[2].weight == 0) == (before == 0)).all().item())
        elif talk.rank == 0:
            made = {"model": model, "optimizer": optimizer, "session": session}
            torch.save({name: of.state_dict() for name, of in made.items()}, file)
        assert (model[2].weight == 0).sum() == 512
        session.close()
    dist.barrier()
    return zeros


def test_the_page_on_resuming(cluster, launch, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "resume.md").read_text(), re.DOTALL)
    arguments = {"blocks": blocks, "folder": str(tmp_path)}
    for world in (2, 3):
        ended = launch(cluster, resume, world, **arguments).finish()
        assert not any(rank.error for rank in ended), ended
    assert all(rank.value == [True] * len(blocks) for rank in ended), ended


def drifts(place: Place):
    """Trains a little less where PacTrain is."""
    model = net()
    ddp = DDP(model)
    place.attach(ddp)
    optimizer = sgd(model)
    for step in range(3):
        train_step(ddp, optimizer, place.batch(step) * (0.999 if place.ours else 1))
    return model


def test_a_script_that_differs_silently_is_counted(cluster, tmp_path):
    script = Script("one that drifts", drifts)
    verdict = scripts_check.check(cluster, script, tmp_path)
    assert verdict.kind == "silent_difference"
    assert "weight differs from that of torch alone" in verdict.text
    assert not verdict.expected
    assert scripts_check.count([verdict])["silent_differences"] == 1


REFUSED = Ended(error="RefusedError", text="no: rank 1 ended.\nDo this.", typed=True)


def judged(ours, plain=None, **options):
    script = Script("a script", drifts, ways=("dense",), **options)
    ends = [{"dense": end, "plain": plain or Ended({"a": 1.0})} for end in ours]
    return scripts_check.judge(script, ends)


@pytest.mark.parametrize(
    ("ends", "options", "kind", "expected"),
    [
        ([Ended({"a": 1.0})] * 2, {}, "works", True),
        ([Ended({"a": 1.0}), Ended({"a": 1.5})], {}, "silent_difference", False),
        ([Ended({"b": 1.0})] * 2, {}, "silent_difference", False),
        ([Ended({"a": 1.0})] * 2, {"told": "beware"}, "silent_difference", False),
        ([Ended({"a": 1.0}, told="beware of it")] * 2, {"told": "beware"}, "works", True),
        ([Ended({"a": 1.0})] * 2, {"refused": "no"}, "silent_difference", False),
        ([REFUSED], {"refused": "no ... Do this"}, "refused_in_words", True),
        ([REFUSED], {"refused": "Do this ... no"}, "refused_in_words", False),
        ([REFUSED], {}, "refused_in_words", False),
        ([Ended(error="E", text="no", typed=True)], {}, "failed", False),
        ([Ended(error="KeyError", text="3")], {}, "failed", False),
    ],
)  # fmt: skip
def test_what_comes_of_a_script_is_judged(ends, options, kind, expected):
    verdict = judged(ends, **options)
    assert (verdict.kind, verdict.expected) == (kind, expected), verdict


def test_a_script_that_torch_alone_cannot_run_is_no_proof():
    plain = Ended(error="RuntimeError", text="no")
    assert judged([Ended({"a": 1.0})], plain).kind == "failed"


def test_the_last_line_counts(monkeypatch, tmp_path, capsys):
    kinds = {"plain": Verdict("works"), "clipping": Verdict("silent_difference", "x", False)}
    monkeypatch.setattr(scripts_check, "check", lambda cluster, script, _: kinds[script.name])
    monkeypatch.setattr(scripts_check, "OUT", tmp_path / "out" / "counted.json")
    assert scripts_check.main(list(kinds)) == 1
    counted = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert counted == {
        "scripts": 2, "works": 1, "refused_in_words": 0, "silent_differences": 1, "failed": 0,
    }  # fmt: skip
    assert json.loads((tmp_path / "out" / "counted.json").read_text()) == counted
    del kinds["clipping"]
    assert scripts_check.main(["plain"]) == 0
