# Every target sets up what it needs by itself (tools/setup) and can be run alone.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
SEEDS ?= 20000
DURATION ?= 300
SEED ?= 0
STAGES ?= 0

# More flags for every bazel call, e.g. BAZEL_FLAGS=--jobs=1.
BAZEL_FLAGS ?=
PYTHON := .venv/bin/python
export BAZEL_FLAGS

.PHONY: help setup build build-cuda check dist test scripts-check verify demo bench-accuracy bench-bytes bench-exchange bench-kernels bench-memory bench-observe bench-tls observe-check deploy-check docs gpu-check measure figures report report-check report-experiments report-gpu report-many report-page report-quick report-runs report-scale report-steps report-times sim mutants chaos attack nightly clean

help:  ## This list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | \
	  column -t -s '|'

setup:  ## Installs what is missing (Debian packages, .venv); done by all others too.
	@tools/setup test
	@tools/setup verify

build:  ## Builds the programs into out/bin, daemons and library also into the Python package.
	@tools/setup
	@tools/build

build-cuda:  ## Installs nvcc into .cuda (from PyPI; needs no GPU) and compiles the kernels for GPUs; ends with a line of JSON.
	@tools/setup cuda
	@$(PYTHON) tools/build_cuda.py

dist:  ## A wheel, a tarball and a Debian package in out/dist that need only glibc (the wheel also torch, numpy; the package systemd).
	@tools/setup dist
	@tools/setup cuda
	@$(PYTHON) tools/build_cuda.py
	@tools/build
	@$(PYTHON) tools/dist.py

check:  ## What a change needs in under two minutes: format, lint, types, layers, tests of touched packages.
	@tools/setup test
	@tools/setup verify
	@tools/check

test:  ## C++ and Python tests, but for the nightly ones; ends with "N passed, N failed, N skipped".
	@tools/setup test
	@tools/build
	@$(PYTHON) tools/run_tests.py

scripts-check: build  ## Scripts of all kinds, by torch alone and with PacTrain (SCRIPTS="ema tied": only these); ends with a line of JSON.
	@$(PYTHON) tests/e2e/python/scripts_check.py $(SCRIPTS)

verify:  ## Format, lint, types, layers, wheel, eight mutants, clang thread-safety, sanitizers where they find most.
	@tools/setup verify
	@tools/verify

demo: build  ## Three sites on 100 Mbps links: plain DDP against PacTrain (KEEP=1: leave it up; CHECK=1: goals must be met).
	@$(PYTHON) -m bench.demo

bench-accuracy: build  ## Accuracy of two sites over 50 Mbps with TLS beside one world of plain DDP, three seeds.
	@$(PYTHON) -m bench.accuracy

bench-bytes: build  ## Bytes on the narrow links, counted at the interface.
	@$(PYTHON) -m bench.bytes

bench-exchange: build  ## Seconds per step over slow links beside torch's (RATE=100mbit ELEMENTS=n SITES=3,2,3 LINKS=0-1,1-2 NODES=8 TOPOLOGY=star ROWS=a,b ROUNDS=5 STEPS=0 RTT=20ms LOSS=0.2% CONGESTION=cubic).
	@$(PYTHON) -m bench.exchange

bench-tls: build  ## What TLS adds to a step at 1 Gbps.
	@$(PYTHON) -m bench.tls

bench-memory: build  ## What memory a rank needs above one of plain DDP.
	@$(PYTHON) -m bench.memory

observe-check: build  ## Rules, alerts and dashboards on a real Prometheus, with a job and staged faults (PICTURES=folder).
	@tools/setup nightly
	@$(PYTHON) -m bench.observe $(if $(PICTURES),--pictures $(PICTURES))

bench-observe: build  ## What a Prometheus and 200 viewers of the page cost a job.
	@tools/setup nightly
	@$(PYTHON) -m bench.observe_cost

gpu-check: dist  ## Packs the wheel and a script into out/gpu-check, and says the command that tries them on a machine with a GPU; ends with a line of JSON.
	@$(PYTHON) tools/pack_gpu_check.py

deploy-check: dist  ## What deploy/ has: systemd units, the Debian package under a real systemd, images, Kubernetes manifests; ends with a line of JSON.
	@tools/setup test
	@tools/setup nightly
	@tools/setup docs
	@tools/setup ray
	@$(PYTHON) tests/deploy/check.py

docs: build  ## The documentation site, in out/docs; ends with a line of JSON (warnings, dead links).
	@tools/setup docs
	@$(PYTHON) tools/docs.py

bench-kernels:  ## Kernels beside memcpy and torch, on one thread.
	@tools/setup
	@$(PYTHON) -m bench.kernels

measure: build  ## All figures of README and docs into bench/results, 35 minutes on two cores (ONLY=demo,bytes; PACTRAIN_DATA=folder; ROUNDS=5; QUICK=1).
	@$(PYTHON) -m bench.measure

figures:  ## README's and the docs' tables from bench/results; says which are stale.
	@tools/setup
	@$(PYTHON) -m bench.figures

report-steps: build  ## Steps to accuracy of each method by virtual workers, what is missing of them (METHODS=a,b SEEDS=1,2 WORKLOADS=transformer TUNE=1 RESULTS=../my-results; needs PACTRAIN_DATA).
	@$(PYTHON) -m bench.evidence.steps $(if $(METHODS),--methods=$(METHODS)) \
	  $(if $(filter command line environment,$(origin SEEDS)),--seeds=$(SEEDS)) $(if $(WORKLOADS),--workloads=$(WORKLOADS)) \
	  $(if $(TUNE),--tune)

report-experiments: build  ## What amount, criterion, start and noise do, on the transformer, and long runs of ResNet-9 (1.4 CPU hours); what is missing of it (needs PACTRAIN_DATA).
	@$(PYTHON) -m bench.evidence.experiments
	@$(PYTHON) -m bench.evidence.blocks

report-scale: build  ## Step times on four emulated topologies, what is missing of them, and the simulator held to them, up to 1,024 workers in 32 sites.
	@$(PYTHON) -m bench.evidence.scale --measure
	@$(PYTHON) -m bench.evidence.scale

report-times: build  ## Seconds per step at the paper's shapes on emulated links, what is missing of them; splittable, ends with a line of JSON (NETWORKS=vgg19 RATES=100 ROWS=a,b TOPOLOGIES=chain,star AGAIN=1; READY=1: compression slept).
	@$(PYTHON) -m bench.evidence.step_times $(if $(NETWORKS),--networks=$(NETWORKS)) \
	  $(if $(RATES),--rates=$(RATES)) $(if $(ROWS),--rows=$(ROWS)) $(if $(AGAIN),--again) \
	  $(if $(TOPOLOGIES),--topologies=$(TOPOLOGIES)) $(if $(READY),--ready)

report-many: build  ## 16 and 32 real workers train a small transformer, once (needs PACTRAIN_DATA, 8 GiB; AGAIN=1).
	@$(PYTHON) -m bench.evidence.many $(if $(AGAIN),--again)

report-runs: build  ## Real trainings to the target on each topology, what is missing of them, against steps times seconds per step; ends with a line of JSON (needs PACTRAIN_DATA; TOPOLOGIES=chain ROWS=levels7-0.5 AGAIN=1).
	@$(PYTHON) -m bench.evidence.runs $(if $(TOPOLOGIES),--topologies=$(TOPOLOGIES)) $(if $(ROWS),--rows=$(ROWS)) $(if $(AGAIN),--again)

report-gpu: build  ## Packs the paper's networks with their images into out/report-gpu, and says the command that trains them on a machine with a GPU (needs PACTRAIN_DATA; DATA=cifar100); ends with a line of JSON.
	@$(PYTHON) tools/pack_report_gpu.py $(if $(DATA),--data=$(DATA))

report: report-steps report-experiments  ## The evidence: what is missing of the steps (hours; may be stopped), of their seconds, of real runs and of scale, then docs/results.md; ends with a line of JSON.
	-@[ -n "$(RESULTS)" ] || $(PYTHON) -m bench.evidence.step_times # Without root or memory the page says what was not run.
	-@[ -n "$(RESULTS)" ] || $(PYTHON) -m bench.evidence.step_times --ready
	-@[ -n "$(RESULTS)" ] || $(PYTHON) -m bench.evidence.scale --measure
	-@[ -n "$(RESULTS)" ] || $(PYTHON) -m bench.evidence.scale
	-@[ -n "$(RESULTS)" ] || $(PYTHON) -m bench.evidence.many
	-@[ -n "$(RESULTS)" ] || $(PYTHON) -m bench.evidence.runs
	@$(PYTHON) -m bench.evidence.report

report-page: build  ## docs/results.md and its plots from the committed pieces, in half a minute; ends with a line of JSON.
	@$(PYTHON) -m bench.evidence.report

report-quick: build  ## Step times of the headline rows measured again, with the committed steps; ends with a line of JSON.
	@$(PYTHON) -m bench.evidence.report --quick

report-check: build  ## The evidence's twin of an exchange against eight real trainers, bit for bit; ends with a line of JSON.
	@$(PYTHON) -m bench.evidence.check

sim:  ## The simulator over SEEDS=20000 seeds (first one: FIRST=n).
	@tools/setup
	@tools/simulate "$(SEEDS)" "$(FIRST)"

mutants:  ## Breaks each rule of tests/mutants/table.txt on purpose: the simulator or a unit test must notice (SAMPLE=1: eight of them, simulator only).
	@tools/setup
	@tools/mutants

chaos: build  ## Real processes killed, stopped, replaced and cut off for DURATION=300 seconds while they train (SEED=n; STAGES=n: only n newcomers in the midst of cuts); ends with a line of JSON.
	@source tools/bazel_env && run_bazel build //tests/chaos:rank && \
	  PYTHONPATH=. $(PYTHON) tests/chaos/run.py --cpp-rank="$$(run_bazel info bazel-bin)/tests/chaos/rank" \
	    --duration=$(DURATION) --seed=$(SEED) --stages=$(STAGES)

attack: build  ## What was tried on PacTrain, beside a job that trains (SHORT=1: half a minute, the live ones; whom they slow is said then, not judged); ends with a line of JSON.
	@tools/attack $(if $(SHORT),--short)

nightly:  ## All of it, also where something fails: tests, clang and sanitizers over everything, the wheel in an empty Debian, 200,000 simulator seeds, 20,000 of the node reduce, all mutants, chaos, attack, bench-bytes, bench-tls, observe-check, deploy-check, the demo's goals.
	@tools/nightly

clean:  ## Removes everything that was built or measured here; keeps .venv and the cache of compiled results.
	-@bazel shutdown
	-@bazel clean
	@rm -rf out .cache python_client/src/pactrain/_native
