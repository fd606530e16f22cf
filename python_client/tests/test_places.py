from __future__ import annotations

import os
from dataclasses import replace

import pytest

from pactrain import places
from pactrain.places import Node, Place


def place(node="", host="h"):
    return Place(host=host, host_name=f"name-{host}", node=node, pid=1, start_ticks=1)


def test_without_a_launcher_all_ranks_share_a_node():
    assert places.nodes_of([place(), place()]) == [
        Node("node-0", (0, 1), "h", "name-h")
    ]


def test_nodes_are_numbered_by_their_first_ranks():
    nodes = places.nodes_of([place("1"), place("0"), place("1")])
    assert [(n.name, n.ranks) for n in nodes] == [("node-0", (0, 2)), ("node-1", (1,))]
    assert [node.first for node in nodes] == [0, 1]


def test_ranks_on_several_hosts_share_no_node():
    nodes = places.nodes_of([place("0"), place("0", "g"), place("0")])
    assert nodes == [
        Node("node-0", (0, 2), "h", "name-h"),
        Node("node-1", (1,), "g", "name-g"),
    ]


@pytest.mark.parametrize(
    ("environment", "node"),
    [
        ({"GROUP_RANK": "1", "SLURM_NODEID": "7"}, "1"),
        ({"SLURM_NODEID": "7"}, "7"),
        ({}, ""),
    ],
)
def test_torchrun_or_slurm_number_the_node(environment, node):
    here = places.place_of_this_process(environment)
    assert here.node == node
    assert here.pid == os.getpid()
    assert here == replace(places.place_of_this_process({}), node=node)
