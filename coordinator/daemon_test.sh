#!/bin/bash
# The daemon as a process: its one line, /metrics, signals, and mistakes that end
# in one clear message and a non-zero exit.
set -u
daemon=$PWD/coordinator/pactrain-coordinator
export PACTRAIN_COORDINATOR_INSECURE_LOCAL=true
dir=$(mktemp -d "${TEST_TMPDIR:-/tmp}/coordinator.XXXXXX")
trap 'kill "${pid:-}" 2>/dev/null; rm -rf "$dir"' EXIT

fail() { echo "FAILED: $*"; cat "$dir"/*.err 2>/dev/null; exit 1; }
# start NAME ARGUMENTS...: sets pid, grpc and metrics once it listens.
start() {
  local name=$1; shift
  : >"$dir/$name.out"
  "$daemon" --listen 127.0.0.1:0 --listen-metrics 127.0.0.1:0 \
    --state-dir "${state:-$dir/state}" "$@" >"$dir/$name.out" 2>"$dir/$name.err" &
  pid=$!
  local line
  # The line comes or the process ends; tail ends with the process.
  line=$(tail -n +1 -f --pid=$pid "$dir/$name.out" | grep -m1 listening)
  [[ $line =~ ^listening\ grpc=(.+)\ metrics=(.+)$ ]] || fail "$name: no line: $line"
  grpc=${BASH_REMATCH[1]} metrics=${BASH_REMATCH[2]}
}
# refused TEXT ARGUMENTS...: ends non-zero with one line that holds TEXT.
refused() {
  local text=$1; shift
  if "$daemon" --listen 127.0.0.1:0 --listen-metrics 127.0.0.1:0 "$@" \
      >"$dir/refused.out" 2>"$dir/refused.err"; then
    fail "accepted: $*"
  fi
  [[ $(wc -l <"$dir/refused.err") == 1 ]] || fail "not one line: $*"
  grep -qF -- "$text" "$dir/refused.err" || fail "no '$text' for: $*"
}
# scrape [PATH]
scrape() {
  exec 3<>"/dev/tcp/${metrics%:*}/${metrics#*:}" || fail "no /metrics"
  printf 'GET %s HTTP/1.0\r\n\r\n' "${1:-/metrics}" >&3
  cat <&3
  exec 3>&-
}

start first
scrape | grep -q '^pactrain_coordinator_term 1' || fail "term 1 is not in /metrics"
scrape /sd/agents | grep -q '^Content-Type: application/json' || fail "no /sd/agents"
scrape / | grep -q ' 404 ' || fail "/ is not 404"
refused "in use by another coordinator" --state-dir "$dir/state"
kill -TERM "$pid"; wait "$pid" || fail "SIGTERM: exit $?"

start second
scrape | grep -q '^pactrain_coordinator_term 2' || fail "term 2 is not in /metrics"
kill -KILL "$pid"; wait "$pid" 2>/dev/null

start third
scrape | grep -q '^pactrain_coordinator_term 3' || fail "term 3 is not in /metrics"
kill -INT "$pid"; wait "$pid" || fail "SIGINT: exit $?"

refused "belongs to cluster 'default'" --state-dir "$dir/state" --cluster other
refused "--no-such-flag" --no-such-flag
refused "--log-level" --log-level loud
(unset PACTRAIN_COORDINATOR_INSECURE_LOCAL; refused "no key and no certificates") || exit 1

# Settings from a file: a mistake names its line; what is printed may be fed back.
printf 'cluster: filed\nlisten-metrcs: 127.0.0.1:0\n' >"$dir/bad.yaml"
refused "$dir/bad.yaml:2: unknown key 'listen-metrcs'; did you mean listen-metrics?" \
  --config "$dir/bad.yaml"
printf 'cluster: filed\nlinks: [a-b, b-c]\n' >"$dir/good.yaml"
PACTRAIN_COORDINATOR_RISK=safe "$daemon" --config "$dir/good.yaml" --print-config \
  --epoch-steps 7 >"$dir/printed.yaml" || fail "--print-config: exit $?"
for line in "cluster: filed  # $dir/good.yaml:1" "links: [a-b, b-c]  # $dir/good.yaml:2" \
    "risk: safe  # PACTRAIN_COORDINATOR_RISK" "epoch-steps: 7  # --epoch-steps" \
    "codec: fp32  # default"; do
  grep -qxF -- "$line" "$dir/printed.yaml" || fail "not printed: $line"
done
"$daemon" --config "$dir/printed.yaml" --print-config >"$dir/again.yaml" ||
  fail "what was printed is not accepted"
cmp <(sed 's/  # .*//' "$dir/printed.yaml") <(sed 's/  # .*//' "$dir/again.yaml") ||
  fail "what was printed reads back as something else"
state=$dir/filed start fourth --config "$dir/good.yaml"
kill -TERM "$pid"; wait "$pid" || fail "SIGTERM: exit $?"

refused "--state-dir: /proc/nowhere: cannot make the state directory" --state-dir /proc/nowhere
refused "--restore: '' is not a file" --restore=
# Nothing of it reaches a terminal as it is.
for odd in $'\e[2J' $'\xe2\x80\xae'; do
  refused "--state-dir: " --state-dir "/proc/$odd/x"
  grep -qF "$odd" "$dir/refused.err" && fail "raw text: $(cat -v "$dir/refused.err")"
  refused "--log-level" --log-level "$odd"
  grep -qF "$odd" "$dir/refused.err" && fail "raw text: $(cat -v "$dir/refused.err")"
  printf '"%s": 1\n' "$odd" >"$dir/odd.yaml"
  refused "$dir/odd.yaml:1: unknown key" --config "$dir/odd.yaml"
  grep -qF "$odd" "$dir/refused.err" && fail "raw text: $(cat -v "$dir/refused.err")"
done
refused "--restore: $dir/nowhere: cannot be read" --state-dir "$dir/restored" --restore "$dir/nowhere"
refused "journal.db is there already" --state-dir "$dir/state" --restore "$dir/state/journal.db"
# No key either: nobody is served.
env -u PACTRAIN_COORDINATOR_INSECURE_LOCAL "$daemon" --state-dir "$dir/restored" --restore "$dir/state/journal.db" >"$dir/restored.out" ||
  fail "--restore: exit $?"
grep -q "start the coordinator on it" "$dir/restored.out" || fail "--restore does not say what to do"
state=$dir/restored start fifth
scrape | grep -q '^pactrain_coordinator_term 1000000004' || fail "the term is not beyond"
kill -TERM "$pid"; wait "$pid" || fail "SIGTERM: exit $?"
# sec_state_dir: what another user has put there is not followed, whoever we are.
mkdir "$dir/trap"; echo theirs >"$dir/theirs"; chmod 644 "$dir/theirs"
ln -s "$dir/theirs" "$dir/trap/journal.db"
refused "journal.db is a symbolic link; remove it" --state-dir "$dir/trap"
[[ $(stat -c %a "$dir/theirs") == 644 ]] || fail "the mode of somebody's file was changed"
ln -s "$dir/state" "$dir/linked"
refused "is a symbolic link or no folder" --state-dir "$dir/linked/"
# A limit on file sizes stands for a full disk.
(ulimit -f 8; refused "journal.db" --state-dir "$dir/full") || exit 1
echo PASSED
