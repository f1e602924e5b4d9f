#!/bin/sh
# Two ranks on this machine, joined through the coordinator that rank 0 serves, train the generated
# set of shapes. Succeeds if the validation accuracy reaches 95 %.
# usage: tools/demo.sh [path of the trainer]
set -eu
trainer=${1:-./trainer}
run=$(mktemp -d "${TMPDIR:-/tmp}/convoy-demo-XXXXXX")
coord=127.0.0.1:${CONVOY_DEMO_PORT:-29417}
trap 'kill "$worker" 2>/dev/null || true; rm -rf "$run"' EXIT INT TERM
threads=$(( ($(nproc) + 1) / 2 ))

"$trainer" --coord "$coord" --rank 1 --threads "$threads" --decode-threads 1 &
worker=$!
"$trainer" --coord "$coord" --rank 0 --world 2 --threads "$threads" --decode-threads 1 --out "$run"
wait "$worker"

best=$(sed -n 's/.*"event":"val".*"top1":\([0-9.e-]*\).*/\1/p' "$run/log.jsonl" | sort -g | tail -1)
awk -v best="$best" 'BEGIN {
    printf "demo: two ranks, validation accuracy %.1f %%\n", 100 * best
    exit best >= 0.95 ? 0 : 1
}'
