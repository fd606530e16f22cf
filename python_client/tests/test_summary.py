"""What a session tells at its end, and in between."""

from __future__ import annotations

import json
import logging
import re
import sys
import types
from xml.etree import ElementTree

import pytest
import torch
from fake_native import activate
from small_nets import pruned, small_net
from torch.nn.utils import prune

import pactrain
from pactrain import plot
from pactrain.course import Point


def to_activation(attached, steps=6):
    optimizer = torch.optim.SGD(attached.ddp.parameters(), lr=0.1)
    for _ in range(steps):
        attached.step(optimizer=optimizer)
        if attached.native.votes:
            activate(attached)
    return optimizer


def messages(caplog, level):
    return [r.getMessage() for r in caplog.records if r.levelno == level]


def test_it_tells_what_travelled_and_why(attach):
    attached = attach(pruned())
    to_activation(attached)
    text = attached.session.summary()
    assert text.startswith("PacTrain: job unit, model Sequential, rank 0 of 1")
    assert "6 in " in text
    assert "a step is a backward pass of this model" in text
    assert "FULL fp32 6 (100.0%)" in text
    assert "after 2 steps" in text
    assert "COMPACTED fp32: start" in text
    assert "20.6% of 155 are zero (counted now); masks ask for 20.6% outside" in text
    assert "NOT REACHED" not in text


def test_the_first_saving_is_there_for_people_and_for_loggers(attach):
    session = attach(pruned()).session
    before = session.stats()
    assert before["pactrain/first_saving_step"] == 0
    assert before["pactrain/first_saving_seconds"] == 0
    session.engine.course.first_saving = Point(steps=2, seconds=3.5)
    assert session.stats()["pactrain/first_saving_step"] == 2
    assert session.stats()["pactrain/first_saving_seconds"] == 3.5
    assert "step 2 of this session, 3.5 s after it began" in session.summary()


def test_what_is_saved_says_whose_view_it_is_and_who_knows_of_the_whole_job(attach):
    session = attach(pruned()).session
    course = session.engine.course
    course.saving = Point(steps=2, exchange_seconds=9.0, dense_bytes=1000)
    course.total.sent_bytes = 500
    course._measured_rate, course._byte_seconds = 1000.0, 1e-3
    text = session.summary()
    assert "; no saving shows here against FULL fp32: " in text
    assert "This is one rank's view; what the whole job saved" in text
    assert "is pactrain_coordinator_saved_seconds, and on the" in text
    course.saving.exchange_seconds = 0.25
    text = session.summary()
    assert "about 0.8 s saved" in text
    assert "This is one rank's view" in text


def test_close_logs_one_block_and_summary_lasts(attach, caplog):
    caplog.set_level(logging.INFO, "pactrain")
    attached = attach(pruned())
    to_activation(attached)
    attached.session.close()
    blocks = [t for t in messages(caplog, logging.INFO) if t.startswith("PacTrain: ")]
    assert blocks == [attached.session.summary()]
    assert not messages(caplog, logging.WARNING)


def test_each_change_of_mode_is_one_line_with_its_reason(attach, caplog):
    caplog.set_level(logging.INFO, "pactrain")
    to_activation(attach(pruned()))
    lines = [t for t in messages(caplog, logging.INFO) if "Sequential: " in t]
    assert lines == ["Sequential: COMPACTED fp32 after 2 steps: start"]


def test_close_says_that_masks_never_came_into_force(attach, caplog):
    attached = attach(pruned())
    optimizer = torch.optim.SGD(attached.ddp.parameters(), lr=0.1)
    attached.step(optimizer=optimizer)
    attached.session.close()
    never, outside = messages(caplog, logging.WARNING)
    assert "not reached: masks" in never
    assert "never came into force in 1 steps; none were in force at the end" in never
    assert "weights outside the masks are not zero" in outside
    assert "NOT REACHED" in attached.session.summary()


def test_a_step_for_masks_that_never_came_is_named(attach):
    attached = attach(pruned(), activate_at=100)
    attached.step()
    (never, *_) = shortfalls(attached.session.summary())
    assert "activate_at=100 has them wait for step 100." in never


def test_masks_of_after_the_last_step_are_told_from_those_in_force(attach, caplog):
    attached = attach(pruned())
    to_activation(attached)
    model, session = attached.ddp.module, attached.session
    pactrain.prune(model, 0.75)
    session.close()
    (never, _) = messages(caplog, logging.WARNING)
    wanted, in_force = re.findall(r"[0-9a-f]{8} \(keep [0-9.]+\)", never)
    assert wanted != in_force
    text = session.summary()
    pactrain.prune(model, 0.9)
    assert shortfalls(session.summary()) == shortfalls(text)


def test_masks_that_are_declared_again_at_the_end_are_in_force(attach):
    net = small_net()
    prune.l1_unstructured(net[2], "weight", 32)
    attached = attach(net)
    to_activation(attached)
    prune.remove(net[2], "weight")
    attached.session.close()
    assert not shortfalls(attached.session.summary())


def test_what_the_forward_pass_masks_is_counted_as_pruned(attach):
    net = small_net()
    prune.l1_unstructured(net[2], "weight", 32)
    session = attach(net, masks="track").session
    assert "20.6% of 155 are zero or masked in the forward pass" in session.summary()
    prune.l1_unstructured(net[2], "weight", 16)  # No step has seen these.
    assert "masks ask for 31.0% outside" in session.summary()


def shortfalls(text):
    return [line for line in text.splitlines() if "never" in line]


def test_close_counts_weights_that_the_script_moved_back(attach, caplog):
    attached = attach(pruned())
    to_activation(attached)
    with torch.no_grad():
        attached.ddp.module[2].weight.fill_(1.0)
    attached.session.close()
    (text,) = messages(caplog, logging.WARNING)
    assert "32 weights outside the masks are not zero" in text


def test_a_session_without_masks_and_one_without_steps_have_no_shortfall(
    attach, caplog
):
    first = attach(small_net())
    first.step()
    first.session.close()
    attach(pruned()).session.close()
    assert not messages(caplog, logging.WARNING)


def test_frozen_weights_are_no_shortfall(attach, caplog):
    model = small_net()
    pactrain.prune(model, 0.5, kind="freeze")
    attached = attach(model)
    to_activation(attached)
    attached.session.close()
    assert not messages(caplog, logging.WARNING)


def test_the_course_is_written_and_drawn(attach, tmp_path, capsys):
    attached = attach(pruned())
    to_activation(attached)
    run = tmp_path / "run.json"
    attached.session.close()
    text = attached.session.summary(to=run)
    record = json.loads(run.read_text())
    assert record["summary"] == text
    assert sum(record["points"]["steps"]) == 6
    assert plot.main([str(run)]) == 0
    drawing = tmp_path / "run.svg"
    assert capsys.readouterr().out == f"{drawing}\n"
    root = ElementTree.fromstring(drawing.read_text())
    words = " ".join(element.text or "" for element in root.iter())
    for part in ("COMPACTED fp32", "keep", "bytes of a step", "seconds of a step"):
        assert part in words
    assert "r, as decisions told it" in words


def test_r_is_taken_from_reasons():
    change = {"steps": 4, "reason": "7 levels cost r = 0.125 of the batch as measured"}
    assert plot._risks([{"steps": 0, "reason": "start"}, change], [4, 8]) == [0, 0.125]


def test_what_is_no_course_is_an_error_in_words(tmp_path, capsys):
    other = tmp_path / "other.json"
    for content in ("", "[]", "{}", '{"version": 9}'):
        other.write_text(content)
        assert plot.main([str(other)]) == 1
        assert "is no course of a run" in capsys.readouterr().err
    assert plot.main([str(tmp_path / "missing")]) == 1
    assert plot.main([]) == 2
    assert "usage: pactrain plot RUN" in capsys.readouterr().err


def written(attach, path):
    attached = attach(pruned())
    to_activation(attached)
    attached.session.summary(to=path)
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r.pop("points"), "points has no steps"),
        (lambda r: r["points"].pop("elements"), "points['elements'] is no list of num"),
        (lambda r: r["points"]["seconds"].append(1), "points['seconds'] has not one"),
        (lambda r: r["points"].update(seconds=["x"] * 6), "points['seconds'] is no"),
        (lambda r: r["points"].update(steps=[0] * 6), "a point without steps"),
        (lambda r: r["points"]["steps"].__setitem__(0, -1), "points['steps'] is no"),
        (lambda r: r.pop("changes"), "changes is no list"),
        (lambda r: r.update(changes=[]), "changes is no list"),
        (lambda r: r.update(changes=[{"steps": 1}]), "changes is no list"),
        (lambda r: r.update(summary=None), "summary is no text"),
    ],
)
def test_a_run_that_was_changed_is_an_error_that_names_the_field(
    attach, tmp_path, capsys, change, words
):
    run = tmp_path / "run.json"
    record = written(attach, run)
    change(record)
    run.write_text(json.dumps(record))
    assert plot.main([str(run)]) == 1
    told = capsys.readouterr().err
    assert "is no course of a run" in told
    assert words in told


def test_what_is_no_text_is_no_course(tmp_path, capsys):
    other = tmp_path / "model.pt"
    other.write_bytes(bytes(range(256)))
    assert plot.main([str(other)]) == 1
    other.write_text("[" * 100_000)
    assert plot.main([str(other)]) == 1
    assert capsys.readouterr().err.count("is no course of a run") == 2


def test_a_drawing_never_replaces_the_run(attach, tmp_path, capsys):
    run = tmp_path / "run.svg"
    written(attach, run)
    for arguments in ([str(run)], [str(run), str(tmp_path / "." / "run.svg")]):
        assert plot.main(arguments) == 1
        assert "is the run itself" in capsys.readouterr().err
    assert json.loads(run.read_text())
    assert plot.main([str(run), str(tmp_path / "other.svg")]) == 0


@pytest.mark.parametrize("to", [3, True, b"run.json", "", ["run.json"]])
def test_what_is_no_path_is_an_error_in_words(attach, to):
    session = attach(small_net()).session
    for one in (session, pactrain.NullSession()):
        with pytest.raises(pactrain.InvalidArgument, match=r"to is .*; allowed is the"):
            one.summary(to=to)


def test_a_name_that_no_file_can_have_is_an_error_in_words(attach):
    session = attach(small_net()).session
    with pytest.raises(pactrain.InvalidArgument, match="cannot be written: embedded"):
        session.summary(to="a\0b")


def test_where_nothing_is_exchanged_no_file_is_written_and_that_is_said(
    caplog, tmp_path
):
    with pytest.warns(UserWarning, match="nothing to exchange"):
        session = pactrain.attach(small_net())
    assert "in one process" in session.summary(to=tmp_path / "run.json")
    assert "run.json') wrote no file: nothing was exchanged" in caplog.text
    assert not list(tmp_path.iterdir())
    session.close()


def test_only_an_open_session_can_be_reported(attach):
    attached = attach(small_net())
    for other in (None, attached.ddp, 3):
        with pytest.raises(pactrain.InvalidArgument, match="session is of type"):
            pactrain.report(other, to=print)
    attached.session.close()
    with pytest.raises(pactrain.InvalidArgument, match="session is closed"):
        pactrain.report(attached.session, to=print)


def test_a_folder_that_is_not_there_is_an_error_in_words(attach, tmp_path):
    session = attach(small_net()).session
    with pytest.raises(pactrain.InvalidArgument, match="cannot be written"):
        session.summary(to=tmp_path / "no" / "run.json")


def test_a_function_gets_the_stats_in_between_and_the_last_ones(attach):
    attached = attach(small_net())
    got = []
    pactrain.report(attached.session, to=lambda *given: got.append(given), every=2)
    for _ in range(5):
        attached.step()
    assert [step for _, step in got] == [2, 4]
    attached.session.close()
    assert [step for _, step in got] == [2, 4, 5]
    assert got[-1][0]["pactrain/steps"] == 5


def test_a_function_that_fails_ends_no_step(attach, caplog):
    attached = attach(small_net())
    pactrain.report(attached.session, to=lambda values, step: 1 / 0, every=1)
    attached.step()
    attached.step()
    assert attached.session.stats()["pactrain/steps"] == 2
    assert "report() at step 1 failed: ZeroDivisionError" in caplog.text


def test_tools_get_the_stats(attach, monkeypatch):
    written = []
    tools = {
        "torch.utils.tensorboard": types.SimpleNamespace(
            SummaryWriter=lambda: types.SimpleNamespace(
                add_scalar=lambda name, value, step: written.append((name, step)),
                flush=lambda: None,
            )
        ),
        "wandb": types.SimpleNamespace(
            run=object(),
            define_metric=lambda name, step_metric: None,
            log=lambda values: written.extend((name, 1) for name in values),
        ),
        "mlflow": types.SimpleNamespace(
            log_metrics=lambda values, step: written.extend(
                (name, step) for name in values
            )
        ),
    }
    for name, module in tools.items():
        monkeypatch.setitem(sys.modules, name, module)
    attached = attach(small_net())
    for tool in ("tensorboard", "wandb", "mlflow"):
        pactrain.report(attached.session, to=tool, every=1)
    attached.step()
    attached.step()
    assert written.count(("pactrain/steps", 1)) == 3
    tools["wandb"].run = None
    with pytest.raises(pactrain.InvalidArgument, match=r"Call wandb\.init\(\)"):
        pactrain.report(attached.session, to="wandb")


def test_a_tool_that_is_not_there_is_an_error_in_words(attach, monkeypatch):
    session = attach(small_net()).session
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(pactrain.InvalidArgument, match="pip install mlflow"):
        pactrain.report(session, to="mlflow")
    with pytest.raises(pactrain.InvalidArgument, match="to is 'excel'; allowed are"):
        pactrain.report(session, to="excel")
    with pytest.raises(pactrain.InvalidArgument, match="every is 0"):
        pactrain.report(session, to=print, every=0)
    pactrain.report(pactrain.NullSession(), to="mlflow")
