"""gpu_check.py's part "frameworks": Accelerate, Lightning and HF Trainer find the GPU themselves
and open NCCL for their own calls. Also one rank of such a job: KIND PLACE FOLDER.

Two ranks as of two nodes, which share a GPU: NCCL takes two ranks on one for a mistake, unless
NCCL_HOSTID tells their hosts apart.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import traceback
from importlib import metadata
from pathlib import Path
from typing import Any

from gpu_job import cluster, last_line
from gpu_place import Answer, Skipped, on

PACKAGES = {"pytorch_lightning": "pytorch-lightning"}
BATCH, WORLD, STEPS = 8, 2, 12
MODULES = {
    "plain": "torch",
    "accelerate": "accelerate",
    "lightning": "pytorch_lightning",
    "transformers": "transformers",
}


def frameworks(place: str, package: Path) -> Answer:
    """Each as plain DDP: the same bits after each step."""
    if not place.startswith(("cuda", "cpu")):
        raise Skipped(f"frameworks know no {place}")
    on(place)
    answer: Answer = {"wrong": [], "kinds": {}}
    for kind, module in MODULES.items():
        if importlib.util.find_spec(module) is None:
            answer.setdefault("skipped", []).append(f"{kind} is not installed")
            continue
        ranks = said_by(package, place, kind)
        answer["kinds"][kind] = {name: ranks[0].get(name) for name in ("place", "backend", "path")}
        answer["kinds"][kind]["version"] = metadata.version(PACKAGES.get(module, module))
        if any("error" in rank for rank in ranks):
            answer.setdefault("failed", []).append(f"{kind}: {ranks}")
            continue
        plain = answer.setdefault("digests", ranks[0]["digests"])  # Plain DDP's, if it ran.
        if any(rank["digests"] != plain for rank in ranks):
            answer["wrong"].append(f"{kind}: {ranks} beside {plain}")
        elif ranks[0]["place"] != place:
            answer.setdefault("failed", []).append(f"{kind} chose {ranks[0]['place']}")
        elif not ranks[0]["mode"].startswith("COMPACTED"):
            answer.setdefault("failed", []).append(f"{kind} trained {ranks[0]['mode']}")
    return answer


def said_by(package: Path, place: str, kind: str) -> list[Answer]:
    with (
        cluster(package) as agents,
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as stack,
    ):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = []
        for rank, agent in enumerate(agents):
            environment = {k: v for k, v in os.environ.items() if not k.startswith("PACTRAIN_")}
            environment |= {
                "RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": str(rank), "NODE_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "TORCHELASTIC_RUN_ID": "gpu-check", "NCCL_HOSTID": f"host-{rank}",
                "NCCL_SOCKET_IFNAME": "lo", "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
                "OMP_NUM_THREADS": "1",
                "PACTRAIN_AGENT": agent, "PACTRAIN_JOB_ID": f"gpu-{kind}",
                "PACTRAIN_ATTACH_TIMEOUT": "40", "HF_HUB_OFFLINE": "1",
            }  # fmt: skip
            argv = [sys.executable, __file__, kind, place, folder]
            ranks.append(subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True))
            stack.callback(ranks[-1].kill)
        try:
            return [json.loads(last_line(rank)) for rank in ranks]
        except (subprocess.TimeoutExpired, ValueError) as error:
            return [{"error": str(error)[:300]}]


def rank_main(kind: str, place: str, folder: str) -> Answer:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader

    import pactrain
    from pactrain.masks import registry

    class Samples(torch.utils.data.Dataset[Any]):
        """Batch 2 * s + r is the one of rank r in step s."""

        def __len__(self) -> int:
            return STEPS * BATCH * WORLD

        def __getitem__(self, index: int) -> Any:
            generator = torch.Generator().manual_seed(index)
            return {"inputs": torch.randn(10, generator=generator)}

    class Net(nn.Module):
        """As HF Trainer wants it: called by name, gives its loss."""

        def __init__(self) -> None:
            super().__init__()
            sizes = (10, 32, 32, 32, 4)
            layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
            self.net = nn.Sequential(*(m for layer in layers for m in (layer, nn.ReLU())))

        def forward(self, inputs: Any) -> Any:
            return {"loss": self.net(inputs).square().mean()}

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    model = Net()
    pactrain.prune(model, 0.5)
    for parameter in model.parameters():  # Whether masks act yet changes no bit.
        if registry.get(parameter) is not None:
            keep = registry.get(parameter)
            parameter.register_hook(lambda grad, keep=keep: grad * keep.to(grad.device))
    digests: list[str] = []
    places: set[str] = set()  # While it trains: Lightning takes it back to the CPU then.

    def note() -> None:
        places.add(str(next(model.parameters()).device))
        whole = hashlib.sha256()
        for parameter in model.parameters():
            whole.update(parameter.detach().cpu().numpy().tobytes())
        digests.append(whole.hexdigest()[:16])

    def sgd() -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    own = range(int(os.environ["RANK"]) * BATCH, len(Samples()), BATCH * WORLD)
    own_batches = DataLoader(Samples(), batch_sampler=[range(s, s + BATCH) for s in own])
    session: Any = None
    cpu = place == "cpu"
    if kind == "plain":
        dist.init_process_group("gloo" if cpu else "nccl")
        model.to(place)
        ddp = nn.parallel.DistributedDataParallel(model, device_ids=None if cpu else [place])
        session = pactrain.attach(ddp)
        optimizer = sgd()
        for batch in own_batches:
            optimizer.zero_grad()
            ddp(batch["inputs"].to(place))["loss"].backward()
            optimizer.step()
            note()
    elif kind == "accelerate":
        from accelerate import Accelerator

        import pactrain.accelerate

        accelerator = Accelerator(cpu=cpu)
        installed = pactrain.accelerate.install(accelerator)
        ddp, optimizer, loader = accelerator.prepare(model, sgd(), DataLoader(Samples(), BATCH))
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(ddp(**batch)["loss"])
            optimizer.step()
            note()
        session = installed.session
    elif kind == "lightning":
        from pytorch_lightning import Callback, LightningModule, Trainer

        from pactrain.lightning import PacTrainCallback

        class Module(LightningModule):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.net = model

            def training_step(self, batch: Any) -> Any:
                return self.net(**batch)["loss"]

            def configure_optimizers(self) -> Any:
                return sgd()

        class Note(Callback):  # type: ignore[misc]
            def on_train_batch_end(self, *_: Any) -> None:
                note()

        callback = PacTrainCallback()
        Trainer(
            accelerator="cpu" if cpu else "gpu",
            strategy="ddp",
            devices=1,
            num_nodes=WORLD,
            max_epochs=1,
            callbacks=[callback, Note()],
            use_distributed_sampler=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            logger=False,
            default_root_dir=folder,
        ).fit(Module(), own_batches)
        session = callback.session
    else:
        from transformers import Trainer as HfTrainer
        from transformers import TrainerCallback, TrainingArguments

        import pactrain.transformers

        class NoteStep(TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                note()

        hf = HfTrainer(
            model,
            TrainingArguments(
                output_dir=folder,
                use_cpu=cpu,
                per_device_train_batch_size=BATCH,
                train_sampling_strategy="sequential",
                lr_scheduler_type="constant",
                max_grad_norm=0.0,
                max_steps=STEPS,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=Samples(),
            optimizers=(sgd(), None),
            callbacks=[NoteStep()],
        )
        installed = pactrain.transformers.install(hf)
        hf.train()
        session = installed.session
    return {
        "digests": digests,
        "mode": session.mode,
        "path": session.device_path.name,
        "place": " ".join(sorted(places)),
        "backend": dist.get_backend(),
    }


def main() -> None:
    with contextlib.redirect_stdout(sys.stderr):
        try:
            said = rank_main(*sys.argv[1:])
        except Exception as error:
            at = traceback.format_tb(error.__traceback__)[-4:]
            said = {"error": f"{type(error).__name__}: {str(error)[:400]}", "at": at}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # NCCL's and Gloo's threads may end it by a signal otherwise.
