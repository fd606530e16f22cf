"""Nothing is started by hand: attach() brings the daemons, and they go with the job."""

from __future__ import annotations

import shutil

import pytest
import scenarios
from daemons import BIN
from launcher import Launch

TYPED = {"StepNotAppliedError", "ResyncRequiredError", "AgentUnresponsiveError"}


@pytest.fixture
def start(jobs, tmp_path):
    """start(scenario, nodes=[node of each rank], environment, **arguments) -> Launch"""
    launches: list[Launch] = []

    def run(scenario, nodes=(0, 0), environment=(), **arguments):
        environments = [{**jobs.environment(node), **dict(environment)} for node in nodes]
        store = tmp_path / f"store-{len(launches)}"
        launches.append(Launch(scenario, environments, store, arguments))
        return launches[-1]

    yield run
    for launched in launches:
        launched.__exit__()


def test_two_jobs_at_once_train_and_leave_nothing(jobs, start):
    running = [start(scenarios.interrupted, nodes) for nodes in ([0, 0], [0, 1, 1])]
    for job in running:
        job.wait_said("training")
    assert len(jobs.directories()) == 3  # One for each node of a job.
    assert len(jobs.processes("pactrain-coordinator")) == 2
    assert len(jobs.processes("pactrain-agent")) == 3
    for job in running:
        job.tell(15)
    for job in running:
        ranks = job.finish()
        assert [rank.value["steps"] for rank in ranks] == [20] * len(ranks)
        assert len({rank.value["digest"] for rank in ranks}) == 1
    jobs.must_leave_nothing()


def test_two_models_share_the_daemons_and_a_node_is_its_own_site(jobs, start):
    ranks = start(scenarios.two_models, nodes=[0, 1]).finish()
    for number, rank in enumerate(ranks):
        assert rank.value == {"agents": [f"node-{number}"] * 3, "sites": [f"node-{number}"] * 3}
    jobs.must_leave_nothing()


def test_the_site_is_the_one_that_is_set(jobs, start):
    # The rest is for daemons that were started by hand.
    others = {"PACTRAIN_AGENT_CONFIG": "/none", "PACTRAIN_COORDINATOR_RISK": "bold"}
    named = {"PACTRAIN_SITE": "paris", **others}
    ranks = start(scenarios.two_models, nodes=[0, 1], environment=named).finish()
    assert [rank.value["sites"] for rank in ranks] == [["paris"] * 3] * 2


def test_a_bad_setting_is_quoted_on_all_ranks(jobs, start):
    bad = {"PACTRAIN_RISK": "bold"}
    for rank in start(scenarios.attach_only, [0, 1], bad).finish():
        assert rank.error == "InvalidArgument"
        assert "--risk: 'bold' is not exact, safe, balanced, fast or a number" in rank.text
        assert "(--risk=bold is PACTRAIN_RISK)" in rank.text
    late = {"PACTRAIN_STEP_DEADLINE": "soon"}
    for rank in start(scenarios.attach_only, [0, 1], late).finish():
        assert rank.error == "InvalidArgument"
        assert "--step-deadline=soon is PACTRAIN_STEP_DEADLINE" in rank.text
    jobs.must_leave_nothing()


def test_a_killed_first_rank_leaves_nothing(jobs, start):
    running = start(scenarios.interrupted)
    running.wait_said("training")
    running.kill(0)
    running.tell(15, [1])
    survivor = running.finish()[1]
    assert survivor.value["error"] in TYPED
    assert survivor.value["untouched"]
    jobs.must_leave_nothing()


def test_a_job_that_is_killed_whole_leaves_nothing(jobs, start):
    running = start(scenarios.interrupted, nodes=[0, 1])
    running.wait_said("training")
    for rank in (0, 1):
        running.kill(rank)
    running.finish()
    jobs.must_leave_nothing()


def test_daemons_die_with_a_killed_warden(jobs, start):
    running = start(scenarios.interrupted)
    running.wait_said("training")
    jobs.kill("warden.py")
    running.tell(15)
    for rank in running.finish():
        assert rank.value["error"] == "AgentUnresponsiveError"
        assert "set PACTRAIN_LOG_DIR" in rank.value["text"].splitlines()[-1]
    assert jobs.wait_for_end(), jobs.processes()


def test_a_missing_daemon_is_the_same_error_on_all_ranks(jobs, start):
    nowhere = {"PACTRAIN_DAEMON_DIR": "/nowhere"}
    ranks = start(scenarios.attach_only, [0, 0, 1], nowhere).finish()
    for rank in ranks:
        assert rank.error == "AgentUnresponsiveError"
        assert "/nowhere/pactrain-agent" in rank.text
    jobs.must_leave_nothing()


def test_a_daemon_that_cannot_start_is_quoted_on_all_ranks(jobs, start, tmp_path):
    (tmp_path / "pactrain-coordinator").symlink_to((BIN / "pactrain-coordinator").absolute())
    agent = tmp_path / "pactrain-agent"
    agent.write_text("#!/bin/sh\necho no such luck >&2\nexit 3\n")
    agent.chmod(0o755)
    ranks = start(scenarios.attach_only, [0, 0, 1], {"PACTRAIN_DAEMON_DIR": str(tmp_path)}).finish()
    for rank in ranks:
        assert rank.error == "AgentUnresponsiveError"
        assert "ended with status 3" in rank.text
        assert "no such luck" in rank.text
    jobs.must_leave_nothing()


def test_a_folder_that_cannot_be_written_is_an_error(jobs, start):
    for rank in start(scenarios.attach_only, environment={"TMPDIR": "/proc"}).finish():
        assert rank.error == "AgentUnresponsiveError"
        assert "Set TMPDIR" in rank.text


def test_logs_stay_where_they_are_wanted(jobs, start, tmp_path):
    logs = tmp_path / "logs"
    for rank in start(scenarios.attach_only, environment={"PACTRAIN_LOG_DIR": str(logs)}).finish():
        assert rank.value == "attached"
    jobs.must_leave_nothing()
    (agent,) = logs.glob("*-node-0-agent.log")
    assert "agent node-0 of site node-0" in agent.read_text()
    shutil.rmtree(logs)
