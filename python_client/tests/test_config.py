from __future__ import annotations

import pytest

import pactrain
from pactrain import config

AGENT = {"PACTRAIN_AGENT": "unix:/run/agent.sock"}


def make(environment, **options):
    return config.config_from_environment(
        rank=0, world_size=2, environment=environment, **options
    )


def test_without_an_agent_attach_starts_one():
    assert make({}).agent == ""
    assert make({"PACTRAIN_AGENT": "", "PACTRAIN_EMBEDDED": "1"}).agent == ""


def test_where_that_is_forbidden_the_error_says_how_to_start_one():
    with pytest.raises(pactrain.PacTrainError, match=r"AGENT is not set.*\n.*--socket"):
        make({"PACTRAIN_EMBEDDED": "0"})


def test_a_bad_word_for_embedded_is_an_error():
    with pytest.raises(pactrain.InvalidArgument, match="PACTRAIN_EMBEDDED is 'no'"):
        make({**AGENT, "PACTRAIN_EMBEDDED": "no"})


@pytest.mark.parametrize("agent", ["/run/a.sock", "tcp://host:1", "unix:relative"])
def test_an_agent_address_of_another_form_is_an_error(agent):
    with pytest.raises(pactrain.InvalidArgument, match=r"^PACTRAIN_AGENT is"):
        make({"PACTRAIN_AGENT": agent})


def test_three_slashes_are_one():
    assert config.agent_from({"PACTRAIN_AGENT": "unix:///run/a"}) == "unix:/run/a"


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({"PACTRAIN_JOB_ID": "a", "SLURM_JOB_ID": "7"}, "a"),
        ({"SLURM_JOB_ID": "7", "TORCHELASTIC_RUN_ID": "run"}, "7"),
        ({"TORCHELASTIC_RUN_ID": "My Run/1"}, "my-run-1"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "default"),
        ({}, "default"),
    ],
)
def test_the_job_is_the_first_id_that_is_set(environment, job):
    assert make({**AGENT, **environment}).job == job


@pytest.mark.parametrize("job", ["Upper", "a" * 64, "-a", "a b"])
def test_a_bad_job_id_is_an_error_that_names_the_variable(job):
    with pytest.raises(pactrain.InvalidArgument, match=r"^PACTRAIN_JOB_ID is"):
        make({**AGENT, "PACTRAIN_JOB_ID": job})


def test_a_bad_site_is_an_error_that_names_the_variable():
    with pytest.raises(pactrain.InvalidArgument) as raised:
        make({**AGENT, "PACTRAIN_SITE": "No Site"})
    first, last = str(raised.value).split("\n")
    assert first.startswith("PACTRAIN_SITE is 'No Site'; allowed are 1 to 63 of a-z")
    assert last == "Set PACTRAIN_SITE to such a name."


@pytest.mark.parametrize("seconds", ["soon", "0", "-3"])
def test_a_bad_attach_timeout_is_an_error(seconds):
    with pytest.raises(pactrain.InvalidArgument, match=r"^PACTRAIN_ATTACH_TIMEOUT is"):
        make({**AGENT, "PACTRAIN_ATTACH_TIMEOUT": seconds})


@pytest.mark.parametrize("environment", [{}, {"PACTRAIN_ATTACH_TIMEOUT": ""}])
def test_an_attach_timeout_that_is_empty_counts_as_unset(environment):
    assert make({**AGENT, **environment}).attach_timeout_seconds == 300


@pytest.mark.parametrize("interval", [-1, 2.0, "5", True, None])
def test_a_bad_interval_is_an_error(interval):
    with pytest.raises(ValueError, match=f"buffer_sync_interval is {interval!r};"):
        make(AGENT, buffer_sync_interval=interval)


@pytest.mark.parametrize("value", ["no", 1, None])
def test_what_is_neither_true_nor_false_is_an_error(value):
    with pytest.raises(ValueError, match=f"sync_masks is {value!r}; allowed are True"):
        make(AGENT, sync_masks=value)


@pytest.mark.parametrize("value", ["yes", 1, float("nan")])
def test_a_gse_that_is_neither_is_an_error_before_anything_waits(attach, net, value):
    with pytest.raises(ValueError, match=f"gse is {value!r}; allowed are True and"):
        attach(net, gse=value)


def test_a_launch_is_named_as_cpp_trainers_name_it():
    # The same text is in trainer/cpp/config_test.cc.
    run = {"TORCHELASTIC_RUN_ID": "run"}
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    assert config.launch_from({**run, **place}, "") == "add15420fc907d97"
    sites = config.launch_of_sites("digits", "a:2,b:4")
    assert sites == "a:2,b:4 6337f5861fb00270"


def test_a_restart_is_another_launch():
    first = config.launch_from({"TORCHELASTIC_RESTART_COUNT": "0"}, "t")
    again = config.launch_from({"TORCHELASTIC_RESTART_COUNT": "1"}, "t")
    assert first != again
    assert config.launch_from({"TORCHELASTIC_RESTART_COUNT": "0"}, "t") == first
    assert config.launch_from({"TORCHELASTIC_RESTART_COUNT": "0"}, "u") != first
    assert len(first) <= 63


@pytest.mark.parametrize(
    ("variable", "given", "wanted"),
    [("", None, False), ("1", None, True), ("1", False, False), ("0", True, True)],
)
def test_what_is_given_goes_before_the_variable(variable, given, wanted):
    made = config.config_from_environment(
        rank=0,
        world_size=1,
        replace=given,
        environment={"PACTRAIN_AGENT": "unix:/a", "PACTRAIN_REPLACE": variable},
    )
    assert made.replace is wanted


def test_another_value_of_the_variable_is_refused():
    with pytest.raises(
        pactrain.InvalidArgument, match="PACTRAIN_REPLACE is 'yes'; allowed"
    ):
        config.config_from_environment(
            rank=0, world_size=1, environment={"PACTRAIN_REPLACE": "yes"}
        )
