# Sourced by tests that start real daemons: a folder, `dir`, and what all of them need.
dir=$(mktemp -d /tmp/pactrain-e2e-XXXXXX)  # Short: socket paths are limited.
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; wait; rm -rf "$dir"' EXIT
# With LeakSanitizer: gRPC's resolver keeps a few bytes of the name "localhost".
echo 'leak:libcares.so' >"$dir/leaks"
export LSAN_OPTIONS="suppressions=$dir/leaks:print_suppressions=0${LSAN_OPTIONS:+:$LSAN_OPTIONS}"

fail() { echo "FAILED: $*"; tail -n 50 "$dir"/*.err "$dir"/*.out 2>/dev/null; exit 1; }
# start NAME PROGRAM ARGUMENTS...: sets line once it listens.
start() {
  local name=$1; shift
  : >"$dir/$name.out"
  "$@" >"$dir/$name.out" 2>"$dir/$name.err" &
  pids+=($!)
  # The line comes or the process ends; tail ends with the process.
  line=$(tail -n +1 -f --pid=$! "$dir/$name.out" | grep -m1 '^listening ')
  [ -n "$line" ] || fail "$name did not start"
}
# in_a_log KEY-FILE...: whether a line of one of these files is in a log.
in_a_log() {
  grep -hE '^[^-]{32}' "$@" >"$dir/secrets" || fail "nothing to look for in $*"
  grep -qF -f "$dir/secrets" "$dir"/*.out "$dir"/*.err
}
# The logs have no line of these files, and would be found out if they had.
sec_log_scan() {
  grep -q ' D [a-z]*: ' "$dir"/*.err || fail "the daemons log less than they may"
  in_a_log "$@" && fail "sec_log_scan: a key is in a log"
  head -c 4096 "${@: -1}" >"$dir/planted.out"
  in_a_log "$@" || fail "sec_log_scan: finds nothing"
  rm "$dir/planted.out"
}
# What anybody on this machine may read of the daemons names no file, no user and no key.
sec_metrics_secrets() {
  local name port
  for name in coordinator a b; do
    port=$(sed -nE 's/^listening .*metrics=127.0.0.1:([0-9]+).*/\1/p' "$dir/$name.out")
    exec 3<>"/dev/tcp/127.0.0.1/$port" && printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3 &&
      timeout 10 cat <&3 >"$dir/$name-metrics.out"
    exec 3>&-
    grep -q '^pactrain_' "$dir/$name-metrics.out" || fail "no metrics of $name"
    grep -E "=\"(unix:|/|[^\"]*$(basename "$dir"))|=\"$(id -un)\"" "$dir/$name-metrics.out" &&
      fail "sec_metrics_secrets: a path or user in the metrics of $name"
  done
  in_a_log "$@" && fail "sec_metrics_secrets: a key is in the metrics"
  return 0
}
# trains JOB: rank 0 at one agent, rank 1 at the other; each checks every sum.
trains() {
  tests/e2e/cluster/sum_trainer "unix:$dir/a.sock" "$1" 0 2 30 >"$dir/$1-0.out" &
  local other=$!
  timeout 120 tests/e2e/cluster/sum_trainer "unix:$dir/b.sock" "$1" 1 2 30 >"$dir/$1-1.out" ||
    fail "rank 1 of $1: exit code $?"
  wait $other || fail "rank 0 of $1: exit code $?"
  [ "$(grep -c '^step .* ok$' "$dir/$1-0.out")" == 30 ] || fail "steps of $1"
  grep -q COMPACTED "$dir/$1-0.out" || fail "$1 was never COMPACTED"
}
# begins JOB: as trains, and goes on until it is ended.
begins() {
  trainers=()
  local rank agents=(a b)
  for rank in 0 1; do
    : >"$dir/$1-$rank.out"
    tests/e2e/cluster/sum_trainer "unix:$dir/${agents[rank]}.sock" "$1" $rank 2 100000000 \
      >"$dir/$1-$rank.out" &
    trainers+=($!)
  done
  pids+=("${trainers[@]}")
}
# committed JOB: how many steps, each of them checked.
committed() { grep -c '^step .* ok$' "$dir/$1-1.out"; }
# commits JOB: five steps more, from now on.
commits() {
  [ "$(timeout 120 tail -n 0 -f --pid="${trainers[1]}" "$dir/$1-1.out" |
    grep -m5 '^step .* ok$' | wc -l)" == 5 ] || fail "$1 commits nothing $2"
}
# ends JOB: which nothing else had ended.
ends() {
  kill "${trainers[@]}"
  local trainer
  for trainer in "${trainers[@]}"; do
    wait "$trainer"
    [ $? == 143 ] || fail "$1 had ended by itself"
  done
}
