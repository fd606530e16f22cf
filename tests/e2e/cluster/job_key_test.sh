#!/bin/bash
# Two real agents and a coordinator with a job's key: they sum, who holds the key may
# operate, and who holds none or another one disturbs nobody.
set -u
source tests/e2e/cluster/daemons.sh

admin() { coordinator/admin/pactrain-admin --coordinator "$grpc" "$@" 2>&1; }
new_key() { coordinator/admin/pactrain-admin new-key "$1" >/dev/null || fail "new-key $1"; }
new_key "$dir/job.key"
new_key "$dir/other.key"
key=--job-key-file=$dir/job.key

start coordinator coordinator/pactrain-coordinator --listen 0.0.0.0:0 \
  --listen-metrics 127.0.0.1:0 --state-dir "$dir/state" --risk exact \
  --log-level debug "$key"
[[ $line =~ grpc=0.0.0.0:([0-9]+) ]] || fail "no address: $line"
grpc=localhost:${BASH_REMATCH[1]}
start a agent/pactrain-agent --name a --socket "unix:$dir/a.sock" --coordinator "$grpc" \
  --log-level debug "$key"
# The variable is as good as a file.
PACTRAIN_JOB_KEY=$(<"$dir/job.key") start b \
  agent/pactrain-agent --name b --socket "unix:$dir/b.sock" --coordinator "$grpc" \
  --log-level debug
[[ $line =~ data=127.0.0.1:([0-9]+) ]] || fail "no address: $line"
data=${BASH_REMATCH[1]}

trains first
admin jobs "$key" | grep -q '^first ' || fail "the key shows no jobs"
admin pin first FULL "$key" | grep -q '^pinned to FULL fp32' || fail "the key pins nothing"
admin jobs --job-key-file "$dir/other.key" | grep -q 'cannot be reached' ||
  fail "another job's key shows jobs"
admin jobs | grep -q 'cannot be reached' ||
  fail "plain text reaches the coordinator"

# Strangers, while the next job commits steps: before them, beside them and after them.
begins second
commits second "before strangers came"
before=$(committed second)
agent/pactrain-agent --name c --socket "unix:$dir/c.sock" --coordinator "$grpc" \
  --connect-timeout 2s --job-key-file "$dir/other.key" >"$dir/c.out" 2>&1 &
stranger=$!
while kill -0 $stranger 2>/dev/null; do
  exec 3<>"/dev/tcp/127.0.0.1/$data" && printf 'GET / HTTP/1.0\r\n\r\n' >&3 && cat <&3 >/dev/null
  exec 3>&-
done
[ "$(committed second)" -gt "$before" ] || fail "second commits nothing beside strangers"
commits second "after strangers came"
ends second
grep -q 'pactrain-agent: coordinator .* cannot be reached' "$dir/c.out" ||
  fail "c joins by another key"
grep -q "refused a connection from 127.0.0.1: TLS handshake: it hung up on this side's certificate" "$dir/coordinator.err" ||
  fail "no refusal in the coordinator's log"
grep -q 'data connection from 127.0.0.1:[0-9]* refused' "$dir/b.err" ||
  fail "no refusal in the log of b"

# sec_bound_key: a key of one job alone, made of the coordinator's, shows, joins and changes
# nothing of another.
coordinator/admin/pactrain-admin new-key --job third --from "$dir/job.key" "$dir/third.key" \
  >"$dir/new-key.out" || fail "new-key --job"
bound=--job-key-file=$dir/third.key
start c agent/pactrain-agent --name c --socket "unix:$dir/c.sock" --coordinator "$grpc" "$bound"
tests/e2e/cluster/sum_trainer "unix:$dir/c.sock" second 0 1 30 20000 >"$dir/c-second.out" &&
  fail "a key of third joins second"
grep -q "c..third may not run job 'second': its key is of job 'third' alone" \
  "$dir/c-second.out" || fail "no word of the key"
timeout 60 tests/e2e/cluster/sum_trainer "unix:$dir/c.sock" third 0 2 30 >"$dir/third-0.out" &
timeout 60 tests/e2e/cluster/sum_trainer "unix:$dir/a.sock" third 1 2 30 >"$dir/third-1.out" ||
  fail "third does not train with a key of its own"
wait $! || fail "rank 0 of third"
[[ $(admin jobs "$bound" | sed 1d | cut -d' ' -f1) == third ]] || fail "its key shows others"
admin pin first FULL "$bound" | grep -q "of job 'third' alone" || fail "its key pins first"
admin job second "$bound" | grep -q "of job 'third' alone" || fail "its key shows second"
admin audit "$bound" | grep -q "of all jobs" || fail "its key shows the audit log"
coordinator/pactrain-coordinator --listen 127.0.0.1:0 --state-dir "$dir/other" "$bound" 2>&1 |
  grep -q "the key is of job 'third' alone, which makes no coordinator" ||
  fail "its key makes a coordinator"
# Not any more: its agent is out, and does not come back.
id=$(grep -o 'key/[0-9a-f]*' "$dir/new-key.out") || fail "no id of the key"
admin evict "$id" "$key" | grep -q "^evicted $id" || fail "evict"
admin jobs "$bound" | grep -q "an operator evicted '$id'" || fail "an evicted key shows jobs"

# While a key is changed answers stay answers: nothing else is on standard output.
cp "$dir/job.key" "$dir/changed.key"
coordinator/admin/pactrain-admin rotate-key "$dir/changed.key" --at 1h --overlap 1h >/dev/null ||
  fail "rotate-key"
changed=--job-key-file=$dir/changed.key
[[ $(coordinator/admin/pactrain-admin --coordinator "$grpc" --json jobs "$changed" 2>/dev/null) == '{'* ]] ||
  fail "--json beside a key that is changed"
coordinator/pactrain-coordinator --print-config "$changed" 2>/dev/null | grep -q '^certificates\|\[info\]' &&
  fail "--print-config beside a key that is changed"

# Not by a file that others may read, and not beside certificates.
chmod 644 "$dir/other.key"
agent/pactrain-agent --name c --job-key-file "$dir/other.key" 2>&1 |
  grep -q "^pactrain-agent: --job-key-file: $dir/other.key may be used by others" ||
  fail "a key that others may read"
coordinator/pactrain-coordinator "$key" --tls-cert x 2>&1 |
  grep -q '^pactrain-coordinator: --job-key-file: given beside --tls-cert' ||
  fail "a key beside a certificate"
sec_metrics_secrets "$dir"/*.key
sec_log_scan "$dir"/*.key
echo PASSED
