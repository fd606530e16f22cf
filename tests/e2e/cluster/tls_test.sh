#!/bin/bash
# Two real agents and a coordinator with certificates of tools/certs: they sum, also over
# a change of certificates, operators and readers may do what is theirs, and strangers
# disturb nobody.
set -u
source tests/e2e/cluster/daemons.sh
tls() { echo --tls-cert "$dir/pki/$1.pem" --tls-key "$dir/pki/$1.key" --tls-ca "$dir/pki/ca.pem"; }

tools/certs "$dir/pki" --coordinator --agent a --agent b --operator --reader >/dev/null ||
  fail "tools/certs"
# Any address of the machine, as with TLS it may be.
start coordinator coordinator/pactrain-coordinator --listen 0.0.0.0:0 \
  --listen-metrics 127.0.0.1:0 --state-dir "$dir/state" --risk exact \
  --policy-file "$dir/pki/policy.yaml" --log-level debug $(tls coordinator)
[[ $line =~ grpc=0.0.0.0:([0-9]+) ]] || fail "no address: $line"
grpc=localhost:${BASH_REMATCH[1]}
for agent in a b; do
  start $agent agent/pactrain-agent --name $agent --socket "unix:$dir/$agent.sock" \
    --coordinator "$grpc" --log-level debug $(tls agent-$agent)
done
[[ $line =~ data=127.0.0.1:([0-9]+) ]] || fail "no address: $line"
data=${BASH_REMATCH[1]}

trains first

admin() { coordinator/admin/pactrain-admin --coordinator "$grpc" "$@" 2>&1; }
admin jobs $(tls reader) | grep -q '^first ' || fail "a reader sees no jobs"
admin job first $(tls reader) | grep -q '^plan  *a and b swap' || fail "no plan is shown"
admin pin first FULL $(tls reader) | grep -q 'this is for an operator' || fail "a reader pins"
admin pin first FULL $(tls operator) | grep -q '^pinned to FULL fp32' || fail "no operator pins"
admin jobs $(tls agent-a) | grep -q 'this is for a reader' || fail "an agent sees jobs"
coordinator/admin/pactrain-admin --coordinator "127.0.0.1:${grpc#*:}" jobs 2>&1 |
  grep -q 'cannot be reached' ||
  fail "plain text reaches the coordinator"

# An agent with another's certificate does not start; one that only says so is refused.
agent/pactrain-agent --name c --socket "unix:$dir/c.sock" --coordinator "$grpc" \
  $(tls agent-a) 2>&1 | grep -q 'of spiffe://pactrain/agent/a, not of' || fail "c starts as a"

# Strangers at the data port, and new certificates, while the next job commits steps: before
# them, beside them and after them.
begins second
commits second "before strangers came"
before=$(committed second)
for _ in 1 2 3; do
  exec 3<>"/dev/tcp/127.0.0.1/$data" && printf 'GET / HTTP/1.0\r\n\r\n' >&3 && cat <&3 >/dev/null
  exec 3>&-
done
tools/certs "$dir/pki" --coordinator --agent a --agent b --operator --reader >/dev/null ||
  fail "tools/certs, again"
[ "$(committed second)" -gt "$before" ] || fail "second commits nothing beside strangers"
commits second "with new certificates"
ends second
[ "$(grep -c 'data connection from 127.0.0.1:[0-9]* refused' "$dir/b.err")" == 1 ] ||
  fail "not one refusal in the log of b"
trains third
# The coordinator's watcher looks every two seconds: until then the old ones are fine.
admin jobs $(tls reader) | grep -q '^third ' || fail "a reader with a new certificate"
sec_metrics_secrets "$dir"/pki/*.key
sec_log_scan "$dir"/pki/*.key
echo PASSED
