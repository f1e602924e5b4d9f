#!/bin/sh
# tools/demo.sh [TRAINER]: two ranks on this machine train the generated set of shapes into runs/demo.
# Succeeds if the validation accuracy reaches 95 %.
set -eu
run=runs/demo
rm -rf "$run"
"$(dirname "$0")/launch" -n 2 -- "${1:-./trainer}" --decode-threads 1 --optimizer muon --epochs 3 \
    --out "$run"

best=$(sed -n 's/.*"event":"val".*"top1":\([0-9.e-]*\).*/\1/p' "$run/log.jsonl" | sort -g | tail -1)
awk -v best="$best" 'BEGIN {
    printf "demo: two ranks, validation accuracy %.1f %%\n", 100 * best
    print "To see how it works, read src/mini/mini.cpp"
    exit best >= 0.95 ? 0 : 1
}'
