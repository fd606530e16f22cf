"""What `make report-gpu` leaves for a machine with a GPU."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from bench.test_evidence_gpu import write_cifar

TOOL = runpy.run_path(str(Path(__file__).with_name("pack_report_gpu.py")))
pack, left_out, MOST = TOOL["pack"], TOOL["left_out"], TOOL["MOST_BYTES"]


def data_in(folder: Path, *names: str) -> str:
    folder.mkdir()
    for name in names:
        write_cifar(folder, name, 10 if name == "cifar10" else 100)
    return str(folder)


def try_there(folder: Path, *arguments: str) -> list[str]:
    """Lines of the packed script, by what is packed alone."""
    command = [sys.executable, "-m", "bench.evidence.gpu", "--device=cpu", "--try", *arguments]
    done = subprocess.run(command, cwd=folder, env={}, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_folder_alone_runs_two_steps_of_a_network(tmp_path: Path) -> None:
    assert pack(data_in(tmp_path / "data", "cifar10"), tmp_path / "out") == ["cifar10"]
    names = "resnet18-cifar10,vgg19-cifar10"
    lines = try_there(tmp_path / "out", f"--workloads={names}", "--methods=levels7-0.5")
    assert set(json.loads(lines[-1])["tried"]) == set(names.split(","))
    assert "vgg19-cifar10 levels7-0.5: 20,035,018 elements" in "\n".join(lines)


SIDE_BY_SIDE = """
import json, math, shutil, sys
from bench.evidence import gpu, steps
from bench.evidence.workloads import Place, Stopped
small = gpu.make("vgg19-cifar10", "", Place(), small=True)
folder = steps.FOLDER / small.name
shutil.rmtree(folder, ignore_errors=True)  # What the checkout has is a GPU's, of real images.
found = []
for until in (None, 0.0, math.inf):  # None: one after the other.
    opening = gpu.Opening(small.name, "", "cpu", until or 0.0, small=True)
    with gpu.side_by_side(opening, 2) as run:
        try:
            asked = small, ["ddp"], [1, 2], False
            steps.run_workload(*asked) if until is None else steps.run_workload(*asked, run=run)
        except Stopped as stop:
            found.append(str(stop))
            continue
    found.append({path.name: json.loads(path.read_text()) for path in folder.glob("*-*.json")})
    shutil.rmtree(folder)
print(json.dumps(found))
"""


def test_runs_side_by_side_leave_what_one_after_the_other_leaves(tmp_path: Path) -> None:
    pack(data_in(tmp_path / "data", "cifar10"), tmp_path / "out")
    environment = {"PACTRAIN_DATA": "data", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SIDE_BY_SIDE], cwd=tmp_path / "out", text=True,
                          env=environment, capture_output=True, timeout=1200)  # fmt: skip
    assert done.returncode == 0, done.stderr
    alone, stopped, beside = json.loads(done.stdout.splitlines()[-1])
    assert set(alone) == {"ddp-1.json", "ddp-2.json"}
    assert stopped == "vgg19-cifar10 ddp-1: not begun; vgg19-cifar10 ddp-2: not begun"
    for pieces in (alone, beside):
        for piece in pieces.values():
            del piece["seconds"], piece["cpu_seconds"]
    assert beside == alone


@pytest.mark.nightly
def test_the_folder_alone_runs_resnet152_and_all_methods_of_resnet18(tmp_path: Path) -> None:
    pack(data_in(tmp_path / "data", "cifar10", "cifar100"), tmp_path / "out")
    try_there(tmp_path / "out", "--workloads=resnet152-cifar100", "--methods=ddp,levels7-0.5")
    assert len(try_there(tmp_path / "out", "--workloads=resnet18-cifar10")) > 14


def test_cifar100_is_packed_where_it_is_there_and_else_said(tmp_path: Path) -> None:
    both, one = data_in(tmp_path / "2", "cifar10", "cifar100"), data_in(tmp_path / "1", "cifar10")
    assert pack(both, tmp_path / "out") == ["cifar10", "cifar100"]
    assert left_out(both, ["cifar10", "cifar100"]) == ""
    assert "PACTRAIN_DATA has none. To add it, put cifar100_train.npz" in left_out(one, ["cifar10"])


def test_what_is_too_large_together_is_left_out_and_alone_refused(tmp_path: Path) -> None:
    folder = data_in(tmp_path / "data", "cifar10", "cifar100")
    with (Path(folder) / "cifar100_test.npz").open("ab") as file:
        file.truncate(MOST)
    assert pack(folder, tmp_path / "out") == ["cifar10"]
    assert "or pack it alone: make report-gpu DATA=cifar100" in left_out(folder, ["cifar10"])
    assert sum(p.stat().st_size for p in (tmp_path / "out").rglob("*") if p.is_file()) < MOST
    with pytest.raises(SystemExit, match="allowed are 64,000,000"):
        pack(folder, tmp_path / "out", ["cifar100"])


def test_without_images_it_says_what_to_do(tmp_path: Path) -> None:
    for folder in ("", str(tmp_path)):
        with pytest.raises(SystemExit, match="allowed: a folder with cifar10_train"):
            pack(folder, tmp_path / "out")
