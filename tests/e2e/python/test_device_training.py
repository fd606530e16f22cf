"""Models on a device that needs no GPU, with real agents: as on the CPU, bit for bit."""

from __future__ import annotations

import device_scenarios
import pytest
from device_scenarios import STEPS
from patience import PATIENCE_SECONDS
from test_training import values

PAIR = (0, 0, 1)  # Agents of ranks.


@pytest.fixture(scope="module", autouse=True)
def built():
    """Before ranks wait for each other."""
    device_scenarios.queued.build()


def run(cluster, launch, place, **arguments):
    """What each rank has at the end; ranks are alike."""
    results = values(launch(cluster, device_scenarios.train, place=place, **arguments).finish())
    assert results[0] == results[1]
    return results[0]


@pytest.mark.parametrize("kind", ["", "zero", "freeze"])
@pytest.mark.parametrize("own", [True, False])
def test_training_on_a_device_is_that_on_the_cpu(cluster, launch, own, kind):
    on_cpu, on_device = (
        run(cluster, launch, place, own=own, kind=kind) for place in ("cpu", "queued")
    )
    assert on_device == on_cpu
    assert on_device["mode"] == ("COMPACTED fp32" if kind else "FULL fp32")
    assert on_device["outside"] == 0


@pytest.mark.parametrize("places", [("queued", "cpu"), ("cpu", "queued")])
def test_a_checkpoint_goes_on_elsewhere(cluster, launch, tmp_path, places):
    first, second = places
    options = {"own": True, "kind": "zero", "folder": str(tmp_path)}
    whole = run(cluster, launch, first, **options)
    assert run(cluster, launch, second, resumes=True, **options) == whole


@pytest.mark.parametrize("kind", ["zero", "freeze"])
def test_buckets_that_are_packed_there_give_the_bits_of_the_cpu(cluster, launch, kind):
    """By the kernels' source and the library's way to the driver."""
    if "without nvcc" in device_scenarios.kernels_here():
        pytest.skip("the trainer library was built without nvcc")
    device_scenarios.queued.build_driver()
    on_cpu = run(cluster, launch, "cpu", own=True, kind=kind)
    ranks = launch(cluster, device_scenarios.train_packed, place="queued", kind=kind).finish()
    packed = values(ranks)
    launches = packed[0].pop("launches")
    assert packed[1].pop("launches") == launches > STEPS
    assert packed[0] == packed[1] == on_cpu


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "packing on the GPU made no step sooner"),
        ({"FAKE_CUDA": "12040"}, "GPU 0, Fake 0: the driver can do CUDA 12.4, the kernels need"),
        ({"FAKE_CAPABILITY": "75"}, "GPU 0, Fake 0: the GPU has compute capability 7.5, the"),
    ],
)
def test_auto_goes_by_torch_and_says_what_the_driver_says(cluster, launch, environment, words):
    if "without nvcc" in device_scenarios.kernels_here():
        pytest.skip("the trainer library was built without nvcc")
    device_scenarios.queued.build_driver()
    ranks = launch(cluster, device_scenarios.attached_by, environment=environment, wanted="auto")
    assert all(said.startswith(f"torch ({words}") for said in values(ranks.finish()))


@pytest.fixture
def by_nccl(cluster, launch):
    """Ranks share a node and have a GPU each, and one more is on another node: by_nccl(fault,
    places, **arguments) -> what ranks have, equal, and what each says of NCCL."""
    if "without nvcc" in device_scenarios.kernels_here():
        pytest.skip("the trainer library was built without nvcc")
    device_scenarios.queued.build_driver()
    device_scenarios.queued.build_nccl()

    def run(fault="", environment=None, places=PAIR, **arguments):
        ranks = launch(
            cluster,
            device_scenarios.train_by_nccl,
            world=len(places),
            places=places,
            environment={"FAKE_NCCL": fault, **(environment or {})} if fault else environment,
            **arguments,
        )
        results = values(ranks.finish())
        assert all(result == results[0][0] for result, _ in results)
        return results[0][0], [node for _, node in results]

    return run


@pytest.fixture(scope="module")
def on_cpu(cluster):
    """The same job on the CPU, once for each kind and place."""
    found = {}

    def look(launch, kind, places=PAIR):
        if (kind, places) not in found:
            how = {"place": "cpu", "own": True, "kind": kind, "places": places}
            ranks = launch(cluster, device_scenarios.train, world=len(places), **how)
            found[kind, places] = values(ranks.finish())[0]
        return found[kind, places]

    return look


@pytest.mark.parametrize("kind", ["", "zero", "freeze"])
def test_sums_by_nccl_of_two_gpus_have_the_bits_of_the_cpu(by_nccl, launch, on_cpu, kind):
    result, nodes = by_nccl(kind=kind)
    assert result == on_cpu(launch, kind)
    for node in nodes[:2]:
        assert node["nccl_buckets"] > 2
        assert node["device_path"] == 3
        assert "nccl (PACTRAIN_DEVICE_PATH asks for it; NCCL 2.29.7" in node["path"]
    assert nodes[2]["nccl_buckets"] == 0
    assert "rank 2 is the only one of its model on this node" in nodes[2]["path"]


def test_operators_see_by_node_which_way_gradients_leave_gpus(by_nccl, cluster):
    job = cluster.new_job()
    _, nodes = by_nccl(kind="", job=job, asks=cluster.admin("job", job, "--json"))
    pair, alone = nodes[0]["shown"]["agent-0"], nodes[0]["shown"]["agent-1"]
    assert pair["name"] == "nccl"
    assert pair["reason"].startswith("PACTRAIN_DEVICE_PATH asks for it; NCCL 2.29.7")
    assert alone["name"] == "device"
    assert "rank 2 is the only one of its model on this node" in alone["reason"]
    assert alone["ncclFallbacks"] == "1"


@pytest.mark.parametrize("together", [3, 4])
@pytest.mark.parametrize("kind", ["", "zero"])
def test_sums_by_nccl_of_more_gpus_reach_the_other_node(by_nccl, launch, on_cpu, together, kind):
    """The stand-in adds by rank, as the host does; a real NCCL may not."""
    places = (0,) * together + (1,)
    result, nodes = by_nccl(places=places, kind=kind)
    assert result == on_cpu(launch, kind, places)
    assert all(node["nccl_buckets"] > 2 for node in nodes[:together])
    assert nodes[together]["nccl_buckets"] == 0


@pytest.mark.parametrize(
    ("seed", "kind", "fault"),
    [(1, "zero", ""), (2, "freeze", "late:9:1"), (3, "", "error:9:0"), (4, "", "")],
)
def test_paths_that_change_from_bucket_to_bucket_give_the_bits_of_the_cpu(
    by_nccl, launch, on_cpu, seed, kind, fault
):
    result, nodes = by_nccl(fault, kind=kind, seed=seed)
    assert result == on_cpu(launch, kind)
    for node in nodes[:2]:
        assert node["torch"] > 1
        assert node["device"] > 1
        assert node["nccl"] == node["nccl_buckets"] > 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("error:1:0", "rank 0: ncclAllReduce: unhandled cuda error (1)"),
        ("late:1:1", "rank 1: ncclAllReduce: remote process exited (6)"),
        ("progress:1:1", "rank 0 had not reduced bucket"),
        ("call:1:0", "rank 0 had not reduced bucket"),
        ("kernel:1:1", "rank 0 had not reduced bucket"),
        ("revoke:1:1", "rank 0 had not reduced bucket"),
    ],
)
def test_a_failed_nccl_costs_no_step(by_nccl, launch, on_cpu, fault, words):
    """The bucket in which it fails, and all that follow, go by the host."""
    result, nodes = by_nccl(fault, kind="zero")
    assert result == on_cpu(launch, "zero")
    for node in nodes[:2]:
        assert node["nccl_buckets"] == 1
        assert node["nccl_fallbacks"] >= 1
        assert node["device_path"] == 2
        assert words in node["path"]


def test_a_communicator_that_does_not_open_costs_no_step(by_nccl, launch, on_cpu):
    result, nodes = by_nccl("open:0:1", kind="zero")
    assert result == on_cpu(launch, "zero")
    for node in nodes[:2]:
        assert node["nccl_buckets"] == 0
        assert "ncclCommInitRankConfig: unhandled cuda error (1)" in node["path"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"each": {"FAKE_NCCL_VERSION": ("22907", "22602", "22907")}},
            "rank 0 has NCCL 2.29.7, rank 1 of the",
        ),
        ({"environment": {"FAKE_GPU": "7"}}, "ranks 0 and 1 are on one GPU (GPU-"),
        (
            {"each": {"FAKE_GPU_NAME": ("A", "B", "A")}},
            "rank 1 is on a GPU of another kind (B, GPU-",
        ),
        ({"environment": {"FAKE_GPU_NAME": "A MIG 1g.10gb"}}, "rank 0 is on a part of a GPU (MIG-"),
        ({"cpus": (1,)}, "rank 0 asks for NCCL, rank 1 of the same node does not: it is on a CPU"),
        ({"without": (1,)}, "rank 0 asks for NCCL, rank 1 of the same node does not"),
    ],
)
def test_gpus_that_do_not_go_together_go_by_the_host(by_nccl, launch, on_cpu, arguments, words):
    result, nodes = by_nccl(kind="zero", **arguments)
    assert result == on_cpu(launch, "zero")
    assert words in nodes[0]["path"]
    assert not nodes[0]["nccl_buckets"]


def test_a_gpu_that_does_not_come_back_from_nccl_ends_its_rank_alone(cluster, launch, by_nccl):
    ranks = launch(
        cluster,
        device_scenarios.train_by_nccl,
        world=3,
        environment={"FAKE_NCCL": "deaf:1:1"},
        kind="zero",
    ).finish()
    assert "the GPU does not come back from NCCL: its kernel is still there" in ranks[1].text
    assert not ranks[0].error
    assert not ranks[2].error


@pytest.mark.parametrize(
    "fault", ["killed:3:1", "stopped:3:1", "killed_in_revoke:3:1", "stopped_in_revoke:3:1"]
)
def test_a_trainer_that_is_lost_in_nccl_costs_the_others_that_step(
    own_cluster, launch, by_nccl, fault
):
    """As one on the CPU: in a bounded time they make it anew, and end equal."""
    ranks = launch(
        own_cluster,
        device_scenarios.train_by_nccl,
        world=3,
        environment={"FAKE_NCCL": fault, "PACTRAIN_ON_SHRINK": "continue"},
        places=PAIR,
        kind="",
    )
    others = [ranks.ranks[0], ranks.ranks[2]]
    ranks.wait_until(lambda: all(rank.value or rank.error for rank in others), PATIENCE_SECONDS)
    (first, node), (second, _) = values(others)
    assert first == second
    assert "rank 0 is the only one of its model on this node" in node["path"]


def test_a_version_that_hangs_is_refused_at_attach(cluster, launch, by_nccl):
    ranks = launch(
        cluster,
        device_scenarios.train_by_nccl,
        environment={"FAKE_NCCL_VERSION": "22805"},
        kind="zero",
    ).finish()
    for rank in ranks:
        assert rank.error == "RefusedError"
        assert "cannot be had here: NCCL 2.28.5 is one of 2.28.3 to 2.28.8" in rank.text
