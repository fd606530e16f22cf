"""The adapters over stand-ins of their frameworks; tests/e2e has the real ones."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from small_nets import small_net
from torch.nn.parallel import DistributedDataParallel

import pactrain
from pactrain.masks import registry
from pactrain.session import sessions

PACKAGES = {
    "accelerate": ["accelerate"],
    "lightning": ["lightning.pytorch", "pytorch_lightning"],
    "transformers": ["transformers"],
}
ADAPTERS = list(PACKAGES)


def forget(name):
    sys.modules.pop(f"pactrain.{name}", None)
    vars(pactrain).pop(name, None)


@pytest.fixture
def frameworks(monkeypatch):
    """Stand-ins, for as long as the test runs."""
    stub = ModuleType("stub")
    stub.Callback = stub.TrainerCallback = object
    stub.trainer_utils = SimpleNamespace(
        PREFIX_CHECKPOINT_DIR="checkpoint",
        get_last_checkpoint=lambda folder: str(max(Path(folder).iterdir())),
    )
    for name, packages in PACKAGES.items():
        forget(name)
        for package in packages:
            monkeypatch.setitem(sys.modules, package, stub)
    yield
    for name in ADAPTERS:
        forget(name)


class Accelerator:
    def __init__(self, kind="MULTI_CPU"):
        self.distributed_type = SimpleNamespace(name=kind)
        self.wrap = DistributedDataParallel if kind != "NO" else lambda model: model
        self.checkpointed = []
        self._models = []

    def prepare_model(self, model, device_placement=None, evaluation_mode=False):
        self._models.append(model)
        frozen = not any(p.requires_grad for p in model.parameters())
        return model if evaluation_mode or frozen else self.wrap(model)

    def register_for_checkpointing(self, *objects):
        self.checkpointed += objects


class Trainer:
    """HF's; train() wraps the model once."""

    def __init__(self, folder, model, wrap=DistributedDataParallel):
        self.args = SimpleNamespace(
            output_dir=str(folder), should_save=True, report_to=[]
        )
        self.callback_handler = SimpleNamespace(callbacks=[])
        self.model_wrapped = wrap(model)
        self.state = SimpleNamespace(global_step=3)

    def train(self, resume_from_checkpoint=None):
        self.call("on_train_begin")

    def call(self, event, **named):
        for callback in self.callback_handler.callbacks:
            getattr(callback, event)(self.args, self.state, None, **named)


def lightning_trainer(model):
    return SimpleNamespace(strategy=SimpleNamespace(model=model))


def pruned():
    model = small_net()
    pactrain.prune(model, 0.5)
    return model


def masks_of(adapter):
    packed = adapter.state_dict()["masks"]
    return {name: bits.tolist() for name, bits in packed.items()}


def test_no_framework_is_imported_before_it_is_used():
    names = [package for packages in PACKAGES.values() for package in packages]
    script = f"import sys, pactrain; assert not sys.modules.keys() & set({names})"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_is_an_attribute_of_the_package(frameworks, name):
    assert getattr(pactrain, name) is importlib.import_module(f"pactrain.{name}")


def test_other_attributes_are_still_missing():
    with pytest.raises(
        AttributeError, match="'pactrain' has no attribute 'lightening'"
    ):
        _ = pactrain.lightening


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_missing_framework_names_its_extra(frameworks, monkeypatch, name):
    for package in PACKAGES[name]:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf'pip install "pactrain\[{name}\]"'):
        getattr(pactrain, name)


def test_a_framework_that_misses_something_itself_says_what(frameworks, monkeypatch):
    def fail(name):
        raise ModuleNotFoundError("No module named 'yaml'", name="yaml")

    monkeypatch.setattr("pactrain.adapters.importlib.import_module", fail)
    with pytest.raises(ModuleNotFoundError, match="yaml"):
        pactrain.adapters.require("transformers", "transformers")


@pytest.mark.parametrize("missing", PACKAGES["lightning"])
def test_either_package_of_lightning_will_do(frameworks, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    assert pactrain.lightning.PacTrainCallback


def test_unknown_arguments_are_an_error_at_once(frameworks, tmp_path, group):
    for install in (
        lambda: pactrain.accelerate.install(Accelerator(), gze=False),
        lambda: pactrain.lightning.PacTrainCallback(gze=False),
        lambda: pactrain.transformers.install(Trainer(tmp_path, pruned()), gze=False),
    ):
        with pytest.raises(TypeError, match="gze"):
            install()


def test_the_model_that_accelerate_prepares_is_attached(frameworks, attach):
    accelerator = Accelerator()
    installed = pactrain.accelerate.install(accelerator, gse=False)
    assert installed.session.stats() == {}
    accelerator.prepare_model(small_net().requires_grad_(False))
    accelerator.prepare_model(small_net(), evaluation_mode=True)
    assert not sessions
    ddp = accelerator.prepare_model(pruned())
    assert installed.session.ddp is ddp
    assert not installed.session._config.gse
    assert accelerator.checkpointed == [installed]


def test_accelerate_loads_the_masks_before_or_after_prepare(frameworks, attach):
    first, model = pactrain.accelerate.install(Accelerator()), pruned()
    first.prepare_model(model)
    state = first.state_dict()
    first.session.close()
    for load_first in (True, False):
        again, other = pactrain.accelerate.install(Accelerator()), small_net()
        if load_first:
            again.load_state_dict(state)
            assert again.state_dict() == state
        again.prepare_model(other)
        if not load_first:
            again.load_state_dict(state)
        mask = registry.get(other[2].weight)
        assert mask is not None
        assert torch.equal(mask, registry.get(model[2].weight))
        again.session.close()


def test_accelerate_attaches_one_model_at_a_time(frameworks, attach):
    accelerator = Accelerator()
    installed = pactrain.accelerate.install(accelerator)
    accelerator.prepare_model(pruned())
    with pytest.raises(pactrain.RefusedError, match="second model"):
        accelerator.prepare_model(pruned())
    installed.session.close()
    ddp = accelerator.prepare_model(pruned())
    assert installed.session.ddp is ddp


def test_install_comes_before_prepare(frameworks, group):
    accelerator = Accelerator()
    accelerator.prepare_model(pruned())
    with pytest.raises(pactrain.RefusedError, match="before prepare"):
        pactrain.accelerate.install(accelerator)


def test_an_accelerator_that_shards_is_refused(frameworks):
    with pytest.raises(pactrain.RefusedError, match="distributed_type is FSDP"):
        pactrain.accelerate.install(Accelerator("FSDP"))


def test_a_second_install_changes_nothing_and_says_so(frameworks, group, tmp_path):
    for install, target in (
        (pactrain.accelerate.install, Accelerator()),
        (pactrain.transformers.install, Trainer(tmp_path, pruned())),
    ):
        first = install(target)
        with pytest.warns(UserWarning, match="installed in this .* already"):
            assert install(target) is first
    assert target.callback_handler.callbacks == [first]


def test_in_one_process_masks_act_with_a_warning(frameworks, tmp_path):
    trainer = Trainer(tmp_path, pruned(), wrap=lambda model: model)
    callback = pactrain.lightning.PacTrainCallback()
    accelerator = Accelerator("NO")
    installed = [
        callback,
        pactrain.accelerate.install(accelerator),
        pactrain.transformers.install(trainer),
    ]
    for start in (
        lambda: callback.on_fit_start(lightning_trainer(pruned()), None),
        lambda: accelerator.prepare_model(pruned()),
        trainer.train,
    ):
        with pytest.warns(UserWarning, match="nothing to exchange"):
            start()
    for adapter in installed:
        assert adapter.session.stats()["pactrain/masks_active"] == 1
        assert adapter.state_dict()["masks"]
        adapter.session.close()


def test_several_processes_without_ddp_are_refused(frameworks, group, monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    callback = pactrain.lightning.PacTrainCallback()
    with pytest.raises(pactrain.RefusedError, match="Sequential in 2 processes"):
        callback.on_fit_start(lightning_trainer(pruned()), None)


def test_lightning_logs_counters_that_are_tensors_of_the_cpu(frameworks, attach):
    """Numbers it would copy to the model's device, one by one."""
    callback, logged = pactrain.lightning.PacTrainCallback(), {}
    callback.on_fit_start(lightning_trainer(DistributedDataParallel(pruned())), None)
    callback.on_train_batch_end(None, SimpleNamespace(log_dict=logged.update))
    assert {name: value.item() for name, value in logged.items()} == pytest.approx(
        callback.session.stats()
    )
    assert all(value.device.type == "cpu" for value in logged.values())
    callback.session.close()


def test_lightning_leaves_the_job_when_fit_ends(frameworks, attach):
    callback = pactrain.lightning.PacTrainCallback()
    for end in (
        lambda trainer: callback.teardown(trainer, None, "fit"),
        lambda trainer: callback.on_exception(trainer, None, ValueError()),
    ):
        trainer = lightning_trainer(DistributedDataParallel(pruned()))
        callback.on_fit_start(trainer, None)
        assert sessions == {callback.session}
        end(trainer)
        assert not sessions


def test_the_trainer_saves_and_resumes(frameworks, attach, tmp_path):
    first = Trainer(tmp_path, pruned())
    installed = pactrain.transformers.install(first)
    first.train()
    first.call("on_save")  # Without the folder: of a hyperparameter search.
    assert not list(tmp_path.iterdir())
    (tmp_path / "checkpoint-3").mkdir()
    first.call("on_save")
    assert masks_of(installed)
    installed.session.close()
    for resume in (True, str(tmp_path / "checkpoint-3")):
        trainer = Trainer(tmp_path, small_net())
        again = pactrain.transformers.install(trainer)
        trainer.train(resume_from_checkpoint=resume)
        assert masks_of(again) == masks_of(installed)
        again.session.close()


def test_a_second_train_goes_on_with_the_session(frameworks, attach, tmp_path):
    trainer = Trainer(tmp_path, pruned())
    installed = pactrain.transformers.install(trainer)
    trainer.train()
    session = installed.session
    trainer.train()
    assert installed.session is session
    trainer.model_wrapped = DistributedDataParallel(pruned())
    trainer.train()
    assert sessions == {installed.session} != {session}


def test_counters_are_logged_where_there_is_a_reporter(frameworks, attach, tmp_path):
    trainer = Trainer(tmp_path, pruned())
    pactrain.transformers.install(trainer)
    trainer.train()
    silent, loud = {}, {}
    trainer.call("on_log", logs=silent)
    trainer.args.report_to = ["tensorboard"]
    trainer.call("on_log", logs=loud)
    assert not silent
    assert loud["pactrain/steps"] == 0
