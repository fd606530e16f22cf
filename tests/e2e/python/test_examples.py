"""What the examples say to those who mistype."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE_SECONDS

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def run(folder, *arguments):
    """Its exit status and what it wrote."""
    ended = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    return ended.returncode, ended.stdout


@pytest.mark.parametrize("batch", ["0", "many"])
def test_a_batch_that_is_no_count_is_named(tmp_path, batch):
    status, text = run(tmp_path, EXAMPLES / "ddp.py", f"--batch={batch}")
    assert status == 2
    assert "argument --batch: " in text
    assert batch in text


@pytest.mark.parametrize(
    "script",
    [
        "multi_site.py",
        *(pytest.param(script, marks=pytest.mark.nightly) for script in ("ddp.py", "pruning.py")),
    ],
)
def test_a_batch_larger_than_a_ranks_images_is_named(tmp_path, script):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    status, text = run(tmp_path, *launcher, EXAMPLES / script, "--batch=751")
    assert status != 0
    assert "--batch is 751; allowed is at most 750, the images of each of 2 ranks." in text


@pytest.mark.parametrize("device", ["nowhere", "cuda:99"])
def test_a_device_that_torch_does_not_see_is_named(tmp_path, device):
    status, text = run(tmp_path, EXAMPLES / "ddp.py", f"--device={device}")
    assert status == 2
    assert f"argument --device: {device}: torch sees " in text


def test_the_export_of_images_has_help_and_takes_it_for_no_file(tmp_path):
    export = EXAMPLES / "cpp_trainer" / "export_images.py"
    status, text = run(tmp_path, export, "--help")
    assert status == 0
    assert "usage: export_images.py" in text
    assert run(tmp_path, export)[0] == 2
    assert list(tmp_path.iterdir()) == []
