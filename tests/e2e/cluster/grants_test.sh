#!/bin/bash
# Two teams at one coordinator with certificates and a policy file: an unmodified client of
# one team joins, sees and changes no job of the other, and what the file takes back ends.
set -u
source tests/e2e/cluster/daemons.sh
tls() { echo --tls-cert "$dir/pki/$1.pem" --tls-key "$dir/pki/$1.key" --tls-ca "$dir/pki/ca.pem"; }

tools/certs "$dir/pki" --coordinator --agent a --agent b --agent x --operator=ann \
  --operator=xen --operator >/dev/null || fail "tools/certs"
policy=$dir/policy.yaml
grants() {
  printf '%s\n' "run: [$1, agent/b=vision, agent/x=text]" \
    'see: [operator=*]' 'change: [operator/ann=vision, operator/xen=text]' >"$policy.new"
  mv "$policy.new" "$policy"
}
# Without a policy it does not start, and prints one that does.
coordinator/pactrain-coordinator --listen 127.0.0.1:0 --listen-metrics 127.0.0.1:0 \
  --state-dir "$dir/state" $(tls coordinator) 2>"$dir/refused.out" &&
  fail "certificates without a policy"
grep -q '^pactrain-coordinator: --tls-cert: certificates need a policy-file' "$dir/refused.out" ||
  fail "no word of the policy"
sed 1d "$dir/refused.out" | grep -v '^$' | cmp - <(grep -v '^#' "$dir/pki/policy.yaml") ||
  fail "another policy is printed than tools/certs writes"

grants agent/a=vision
start coordinator coordinator/pactrain-coordinator --listen 127.0.0.1:0 \
  --listen-metrics 127.0.0.1:0 --state-dir "$dir/state" --risk exact \
  --policy-file "$policy" $(tls coordinator)
[[ $line =~ grpc=127.0.0.1:([0-9]+) ]] || fail "no address: $line"
grpc=localhost:${BASH_REMATCH[1]}
for agent in a b x; do
  start $agent agent/pactrain-agent --name $agent --socket "unix:$dir/$agent.sock" \
    --coordinator "$grpc" $(tls agent-$agent)
done
admin() { coordinator/admin/pactrain-admin --coordinator "$grpc" "$@" 2>&1; }

begins vision
commits vision "before a stranger came"
# sec_grants_join: as a newcomer of that job, with a client that is not modified.
tests/e2e/cluster/sum_trainer "unix:$dir/x.sock" vision 0 2 1000 20000 >"$dir/thief.out" &&
  fail "x joins vision"
grep -q "spiffe://pactrain/agent/x may not run job 'vision': no rule of run in $policy" \
  "$dir/thief.out" || fail "x is not told why"
timeout 60 tests/e2e/cluster/sum_trainer "unix:$dir/x.sock" text 0 1 30 >"$dir/text.out" ||
  fail "x may not run text"
commits vision "beside a stranger"
# sec_grants_admin
[[ $(admin jobs $(tls operator-ann)) != *text* ]] || fail "ann sees text"
admin jobs $(tls operator-ann) | grep -q '^vision ' || fail "ann does not see vision"
admin pin vision FULL $(tls operator-xen) | grep -q '"operator/xen=vision" to change' ||
  fail "xen pins vision"
admin pin vision FULL $(tls operator-ann) | grep -q '^pinned to FULL' || fail "ann pins nothing"
admin audit $(tls operator) >"$dir/audit.out" || fail "no audit"
for who in agent/x operator/xen; do
  grep -q "call refused  spiffe://pactrain/$who #[0-9A-F]*  job vision" "$dir/audit.out" ||
    fail "no refusal of $who in the audit log"
done

# sec_grants_withdrawn: vision has to do without a, which ends it.
grants agent/a=other
for _ in $(seq 600); do
  admin audit $(tls operator) | grep -q 'agent expelled  policy  job vision' && break
done
wait "${trainers[1]}"
grep -q "agent/a may not run job 'vision'" "$dir/vision-1.out" || fail "rank 1 does not say why"
echo PASSED
