"""One training, under plain torchrun and under three frameworks; torchrun starts it.

Usage: framework_script.py KIND PLACE FOLDER AGENT...; rank r uses the r-th agent and leaves
FOLDER/KIND-r.json. PLACE is cpu, or queued: the device of tests/device. What a framework's
script has for PacTrain, but for the pruning, is marked with <--.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import framework_device
import scenarios
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import pactrain
from pactrain.masks import registry

BATCH = 8
WORLD = 2
RANK = int(os.environ["RANK"])
PLACE = sys.argv[2]


class Samples(Dataset[dict[str, Tensor]]):
    """Batch 2 * s + r is the one of rank r in step s."""

    def __len__(self) -> int:
        return scenarios.MOST_STEPS * BATCH * WORLD

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        return {"inputs": torch.randn(10, generator=generator)}


def own_batches() -> DataLoader[dict[str, Tensor]]:
    """Those of this rank; Accelerate and HF Trainer deal the same ones out themselves."""
    starts = range(RANK * BATCH, len(Samples()), BATCH * WORLD)
    return DataLoader(Samples(), batch_sampler=[range(s, s + BATCH) for s in starts])


class Net(nn.Module):
    """As HF Trainer wants it: called by name, gives its loss."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.net = scenarios.mlp(seed)

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        return {"loss": self.net(inputs).square().mean()}


def placed(model: Net) -> Net:
    """Where the frameworks find it right: unlike CUDA, the device of tests/device makes new
    parameters of those that move there, of which an optimizer would not know."""
    return model if PLACE == "cpu" else model.to(framework_device.here())


def pruned() -> Net:
    """Gradients outside the masks are zero from the first step on: when masks begin to
    act depends on the machine, and must not change a bit."""
    model = placed(Net())
    pactrain.prune(model, 0.5)
    for parameter in model.parameters():
        mask = registry.get(parameter)
        if mask is not None:
            parameter.register_hook(lambda grad, mask=mask: grad.masked_fill(~mask, 0.0))
    return model


class Record:
    """What happened, step by step."""

    def __init__(self) -> None:
        self.digests: list[str] = []
        self.modes: list[str] = []
        self.places: set[str] = set()

    def add(self, session: Any, model: nn.Module, enough: int = 12) -> bool:
        """After each step. True: the last `enough` ones were COMPACTED."""
        self.digests.append(scenarios.digest(model))
        self.modes.append(session.mode)
        self.places |= {str(parameter.device) for parameter in model.parameters()}
        assert len(self.digests) < scenarios.MOST_STEPS, session.decision
        return self.modes[-enough:] == ["COMPACTED fp32"] * enough

    def result(self, session: Any) -> dict[str, Any]:
        places = sorted(self.places)
        return {**vars(self), "places": places, "stats": session.stats(), "logged": 0}


def facts(session: Any) -> dict[str, Any]:
    """Of a session that resumed, or of the one before."""
    masks = session.state_dict()["masks"]
    return {
        "step": session.next_step,
        "masks": {name.split("net.")[-1]: bits.tolist() for name, bits in masks.items()},
    }


def plain(folder: Path) -> dict[str, Any]:
    dist.init_process_group("gloo")
    record = Record()
    model = pruned()
    optimizer = scenarios.sgd(model)
    ddp = DistributedDataParallel(model)
    session = pactrain.attach(ddp)
    for batch in own_batches():
        optimizer.zero_grad()
        ddp(**batch)["loss"].backward()
        optimizer.step()
        if record.add(session, model, enough=200):  # More than any framework will need.
            break
    return record.result(session)


def accelerate(folder: Path) -> dict[str, Any]:
    from accelerate import Accelerator

    import pactrain.accelerate  # <--

    record = Record()
    model = pruned()
    optimizer = scenarios.sgd(model)
    loader = DataLoader(Samples(), BATCH)
    accelerator = Accelerator(cpu=True)
    installed = pactrain.accelerate.install(accelerator)  # <--
    ddp, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(ddp(**batch)["loss"])
        optimizer.step()
        if record.add(installed.session, model):
            break
    result = record.result(installed.session)
    accelerator.save_state(str(folder / "accelerate"))
    before = facts(installed.session)
    installed.session.close()

    accelerator = Accelerator()  # Where the first one is.
    again = pactrain.accelerate.install(accelerator)
    model = placed(Net(seed=1))
    ddp, optimizer, loader = accelerator.prepare(
        model, scenarios.sgd(model), DataLoader(Samples(), BATCH)
    )
    accelerator.load_state(str(folder / "accelerate"))
    accelerator.backward(ddp(**next(iter(loader)))["loss"])
    return {**result, "before": before, "after": facts(again.session)}


def lightning_place() -> dict[str, Any]:
    if PLACE == "cpu":
        return {"accelerator": "cpu", "strategy": "ddp"}
    return framework_device.lightning_options()


def lightning(folder: Path) -> dict[str, Any]:
    from pytorch_lightning import Callback, LightningModule, Trainer
    from pytorch_lightning.loggers import CSVLogger

    from pactrain.lightning import PacTrainCallback  # <--

    class Module(LightningModule):
        def __init__(self, net: Net) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: dict[str, Tensor]) -> Tensor:
            return self.net(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return scenarios.sgd(self)

    class Stop(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            trainer.should_stop = record.add(pactrain_callback.session, module)

    def trainer(callbacks: list[Any], **options: Any) -> Trainer:
        return Trainer(
            **lightning_place(),
            devices=WORLD,
            callbacks=callbacks,
            use_distributed_sampler=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            default_root_dir=folder,
            **options,
        )

    record = Record()
    pactrain_callback = PacTrainCallback()
    logger = CSVLogger(folder / "lightning")
    first = trainer([pactrain_callback, Stop()], logger=logger, log_every_n_steps=5)  # <--
    first.fit(Module(pruned()), own_batches())
    result = record.result(pactrain_callback.session)
    first.save_checkpoint(folder / "lightning.ckpt")
    result["logged"] = first.logged_metrics["pactrain/steps"].item()
    steps = len(record.digests)

    again = PacTrainCallback()
    second = trainer([again], max_steps=steps + 1, logger=False)
    second.fit(Module(placed(Net(seed=1))), own_batches(), ckpt_path=folder / "lightning.ckpt")
    before = facts(pactrain_callback.session)
    return {**result, "before": before, "after": facts(again.session)}


def transformers(folder: Path) -> dict[str, Any]:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    import pactrain.transformers  # <--

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if record.add(installed.session, net):
                control.should_training_stop = control.should_save = control.should_log = True

    class Reporter(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
            logged.append(logs["pactrain/steps"])

    def trainer(model: Net, **options: Any) -> Trainer:
        arguments = TrainingArguments(
            output_dir=str(folder / "transformers"),
            use_cpu=True,
            per_device_train_batch_size=BATCH,
            train_sampling_strategy="sequential",
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            **options,
        )
        optimizers = (scenarios.sgd(model), None)
        return Trainer(model, arguments, train_dataset=Samples(), optimizers=optimizers)

    record = Record()
    logged: list[float] = []
    net = pruned()
    first = trainer(net, max_steps=scenarios.MOST_STEPS)
    installed = pactrain.transformers.install(first)  # <--
    first.add_callback(Stop())
    first.add_callback(Reporter())
    first.args.report_to = ["a reporter"]
    first.train()
    result = record.result(installed.session)
    result["logged"] = logged[-1]
    before = facts(installed.session)
    installed.session.close()

    dist.all_reduce(torch.zeros(1))  # Rank 0 has saved.
    second = trainer(placed(Net(seed=1)), max_steps=len(record.digests) + 1)
    again = pactrain.transformers.install(second)
    second.train(resume_from_checkpoint=True)
    return {**result, "before": before, "after": facts(again.session)}


def main() -> None:
    kind, _, folder, *agents = sys.argv[1:]
    os.environ["PACTRAIN_AGENT"] = agents[RANK]
    torch.set_num_threads(1)
    if PLACE != "cpu":
        framework_device.use()
    result = globals()[kind](Path(folder))
    (Path(folder) / f"{kind}-{RANK}.json").write_text(json.dumps(result))
    # Without it Gloo's threads may end the process with SIGABRT (pytorch issue 190489).
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
