"""The device of tests/device for three frameworks, by what each of them has for devices that
it does not know. None is patched.

Accelerate and HF Trainer read ACCELERATE_TORCH_DEVICE, and take a process group that is there;
to them the job is one of CPUs (`cpu`, `use_cpu`). Lightning takes an Accelerator of one's own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg

sys.path.insert(0, str(Path(__file__).parents[2] / "device"))
import queued

assert fake_pg  # It registers the backend "fake".


def here() -> torch.device:
    """That of this rank."""
    return torch.device(queued.NAME, int(os.environ["LOCAL_RANK"]))


def use() -> None:
    queued.use()
    torch.accelerator.set_device_index(here().index)
    os.environ["ACCELERATE_TORCH_DEVICE"] = str(here())
    # Gloo refuses the device, so nobody gives all ranks rank 0's weights: they are equal.
    dist.init_process_group(f"cpu:gloo,{queued.NAME}:fake")


def lightning_options() -> dict[str, Any]:
    """Arguments of Lightning's Trainer."""
    from pytorch_lightning.accelerators import Accelerator
    from pytorch_lightning.strategies import DDPStrategy

    class Queued(Accelerator):
        @staticmethod
        def name() -> str:
            return queued.NAME

        @staticmethod
        def is_available() -> bool:
            return True

        @staticmethod
        def auto_device_count() -> int:
            return torch.accelerator.device_count()

        @staticmethod
        def parse_devices(devices: int) -> int:
            return devices

        @staticmethod
        def get_parallel_devices(devices: int) -> list[torch.device]:
            return [torch.device(queued.NAME, index) for index in range(devices)]

        def setup_device(self, device: torch.device) -> None:
            torch.accelerator.set_device_index(device.index)

        def teardown(self) -> None:
            pass

    class Strategy(DDPStrategy):
        def determine_ddp_device_ids(self) -> None:
            """With ids the model is wrapped in a stream of CUDA's."""

    return {"accelerator": Queued(), "strategy": Strategy()}
