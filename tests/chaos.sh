#!/bin/bash
# A few rounds of tests/lab/chaos, one for each kind of what happens: no step may be lost. Hosts are gone
# afterwards. Needs root, for network namespaces; about half a minute.
set -eu
cd "$(dirname "$0")/.."
# shellcheck source=tests/shell_support
. tests/shell_support
need ip:iproute2 python3:python3
[ -x trainer ] || make -s trainer
export CONVOY_HOSTS=try$$
if [ "$(id -u)" -ne 0 ] || ! tests/lab/hosts up 1 2>/dev/null; then
    echo "chaos: left out, as network namespaces cannot be made here"
    exit 0
fi
tests/lab/hosts down
log=$(mktemp)
trap 'rm -f "$log"' EXIT
tests/lab/chaos --rounds 5 --seed 4898 >"$log" || fail "a round was lost" "$log"
for what in kill stop cable "one way" apart unseen term join; do holds "$what" "$log" "rounds"; done
holds '^5 rounds, 0 lost' "$log" "the summary"
[ -z "$(ip netns list | grep try$$ || true)" ] || fail "hosts are left"
grep '^round' "$log"
