#!/bin/bash
# An agent that cannot have its coordinator ends by itself: exit code 1, a last line that
# says why and what to do, and no socket file.
set -u
dir=$(mktemp -d /tmp/pactrain-e2e-XXXXXX)  # Short: socket paths are limited.
trap 'kill "${pid:-}" 2>/dev/null; rm -rf "$dir"' EXIT

fail() { echo "FAILED: $*"; cat "$dir"/*.err 2>/dev/null; exit 1; }
# gives_up ARGUMENTS... -- TEXTS...: the texts are in the agent's last line.
gives_up() {
  local arguments=()
  while [ "$1" != -- ]; do arguments+=("$1"); shift; done
  shift
  timeout 60 agent/pactrain-agent --insecure-local --name lonely --socket "unix:$dir/agent.sock" \
    "${arguments[@]}" >"$dir/agent.out" 2>"$dir/agent.err"
  local code=$?
  [ $code == 1 ] || fail "exit code $code: ${arguments[*]}"
  grep -q '^listening ' "$dir/agent.out" || fail "it did not start: ${arguments[*]}"
  for text in 'pactrain-agent: coordinator 127.0.0.1:' "$@"; do
    tail -n 1 "$dir/agent.err" | grep -qF -- "$text" || fail "no '$text': ${arguments[*]}"
  done
  [ ! -e "$dir/agent.sock" ] || fail "its socket is still there: ${arguments[*]}"
}

# Nobody listens on port 1.
gives_up --coordinator 127.0.0.1:1 --connect-timeout=1s -- \
  '127.0.0.1:1 cannot be reached (' \
  'correct that or --coordinator, then start the agent again'

: >"$dir/coordinator.out"  # There for tail, whoever is first.
coordinator/pactrain-coordinator --insecure-local --listen 127.0.0.1:0 --listen-metrics 127.0.0.1:0 \
  --state-dir "$dir/state" --links east-west >>"$dir/coordinator.out" 2>"$dir/coordinator.err" &
pid=$!
# The line comes or the process ends; tail ends with the process.
line=$(tail -n +1 -f --pid=$pid "$dir/coordinator.out" | grep -m1 '^listening ')
[[ $line =~ grpc=([^ ]+) ]] || fail "the coordinator did not start"
# Waiting for ever would not help: this is final at once.
gives_up --coordinator "${BASH_REMATCH[1]}" --site north --connect-timeout=inf -- \
  'refused this agent' "is in site 'north', which none of the coordinator's links names" \
  'add a link to it, or give the agent one of these sites'
echo PASSED
