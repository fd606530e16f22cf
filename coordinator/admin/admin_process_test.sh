#!/bin/bash
# pactrain-admin as a process against a real coordinator: where it looks for it,
# exit codes, one clear message, and that no web proxy comes between.
set -u
admin=$PWD/coordinator/admin/pactrain-admin
daemon=$PWD/coordinator/pactrain-coordinator
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/admin.XXXXXX")
trap 'kill "${pid:-}" 2>/dev/null; rm -rf "$dir"' EXIT
unset PACTRAIN_COORDINATOR

fail() { echo "FAILED: $*"; cat "$dir"/* 2>/dev/null; exit 1; }
# exits CODE TEXT ARGUMENTS...: ends with CODE and one line of error with TEXT.
exits() {
  local code=$1 text=$2; shift 2
  "$admin" "$@" >"$dir/out" 2>"$dir/err"
  local got=$?
  [[ $got == "$code" ]] || fail "exit $got instead of $code: $*"
  [[ $(wc -l <"$dir/err") == 1 && ! -s $dir/out ]] || fail "not one line: $*"
  grep -qF -- "pactrain-admin: $text" "$dir/err" || fail "no '$text' for: $*"
}

: >"$dir/coordinator.out"  # There for tail, whoever is first.
"$daemon" --insecure-local --listen 127.0.0.1:0 --listen-metrics 127.0.0.1:0 \
  --state-dir "$dir/state" >"$dir/coordinator.out" 2>"$dir/coordinator.err" &
pid=$!
# The line comes or the process ends; tail ends with the process.
line=$(tail -n +1 -f --pid=$pid "$dir/coordinator.out" | grep -m1 listening)
[[ $line =~ grpc=([^ ]+) ]] || fail "no line: $line"
grpc=${BASH_REMATCH[1]}

export http_proxy=http://127.0.0.1:1 grpc_proxy=http://127.0.0.1:1
[[ $("$admin" --coordinator "$grpc" jobs) == "no jobs are known" ]] || fail "jobs"
[[ $(PACTRAIN_COORDINATOR=$grpc "$admin" jobs) == "no jobs are known" ]] ||
  fail "PACTRAIN_COORDINATOR"
[[ $("$admin" jobs --json --coordinator "$grpc") == '{"term":"1",'*'"jobs":[]}' ]] ||
  fail "--json"
"$admin" --help | grep -q '127.0.0.1:7070' || fail "--help does not say the default"
exits 1 "coordinator $grpc: no job 'nobody' is known" job nobody --coordinator "$grpc"
exits 1 "coordinator $grpc: no job 'nobody' is known" watch nobody --coordinator "$grpc"
exits 1 "coordinator $grpc: job 'nobody' is not known or has not started yet; pactrain-admin jobs" unpin nobody --coordinator "$grpc"
exits 2 "a command is needed" --coordinator "$grpc"
exits 2 "'bogus' is no command" bogus --coordinator "$grpc"
exits 2 "TERNARY needs --levels" pin job TERNARY --coordinator "$grpc"
# Nothing of it reaches a terminal as it is.
for odd in $'\e[2J' $'\xe2\x80\xae'; do
  exits 2 "" "x$odd" --coordinator "$grpc"
  grep -qF "$odd" "$dir/err" && fail "raw text: $(cat -v "$dir/err")"
  exits 2 "" jobs --coordinator "127.0.0.1:$odd"
  grep -qF "$odd" "$dir/err" && fail "raw text: $(cat -v "$dir/err")"
  exits 1 "" audit --witness "$dir/$odd" --coordinator "$grpc"
  grep -qF "$odd" "$dir/err" && fail "raw text: $(cat -v "$dir/err")"
done

kill -TERM "$pid"; wait "$pid"
exits 1 "coordinator $grpc cannot be reached" jobs --coordinator "$grpc"
echo PASSED
