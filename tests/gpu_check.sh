#!/bin/bash
# tools/gpu_check.sh on the emulator: every part reports, a failing one is named with its deviation
# and does not stop the others, time limits hold.
# Tried: with DEVICE=simt. Not tried: on a GPU.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
complain() {
    echo "tests/gpu_check.sh: $1" >&2
    tail -n 40 "$work"/*/report.md "$work"/*/log.txt >&2 || true
    exit 1
}
. tests/shell_support
need python3:python3-minimal
built=build/release
make -s $built/trainer-simt $built/run_tests $built/gemm_ladder
export DEVICE=simt TRAINER=$built/trainer-simt RUN_TESTS=$built/run_tests LADDER=$built/gemm_ladder
export PYTHON=false TESTS="pool mma"
# check NAME STATUS PART...: writes to $work/NAME, and must end with STATUS.
check() {
    local status=0
    OUT=$work/$1 tools/gpu_check.sh "${@:3}" >"$work/said" 2>&1 || status=$?
    [ $status -eq "$2" ] || complain "$1: exit status $status, not $2"
}
# has NAME TEXT: a line of the table.
has() {
    grep -qE "^\| $2" "$work/$1/report.md" || complain "$1: no line '$2' in the report"
}

check all 0
for part in a b c d e f; do has all "$part \|"; done
has all "a \| test_mma \| passed \| cases: [0-9]+"
has all "c \| tiny in bf16, a CUDA graph as op by op \| passed"
has all "d \| fp32 tiny softmax_cross_entropy .* \| measured \| [0-9.]+ ms"
has all "e \| PyTorch \| absent"
has all "f \| ladder: tf32 "
python3 - "$work/all/results.jsonl" <<'PYTHON' || complain "results.jsonl is not one object a line"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert rows[-1]["failed"] == 0 and rows[-1]["passed"] > 10, rows[-1]
assert any("row" in row and row["row"]["images_per_second"] > 0 for row in rows if row.get("part") == "e")
PYTHON

# A kernel without its barrier; a trainer that crashes; and the parts after them.
barrier=$(grep -n '__syncthreads()' kernels/cuda/moments.cuh | head -n 1)
export SIMT_LEAVE_OUT=kernels/cuda/moments.cuh:${barrier%%:*} TESTS="moments pool"
printf '#!/bin/bash\necho started\nkill -SEGV $$\n' >"$work/crashes"
printf '#!/bin/bash\n[ "$1" = --version ] || exec sleep 100\n' >"$work/hangs"
chmod +x "$work/crashes" "$work/hangs"
TRAINER=$work/crashes check broken 1 a c d f
has broken "a \| test_moments \| FAILED"
has broken "a \| test_moments: [^|]+ \| FAILED \| .* off by more than [0-9.e-]+; worst at "
has broken "a \| test_pool \| passed"
has broken "c \| tiny on the CPU \| FAILED \| ended by signal 11: started"
has broken "d \| bench kernels.* \| FAILED \| 0 rows, then ended by signal 11"
has broken "f \| ladder: fp32 "
begin=$SECONDS
TOTAL=20 TRAINER=$work/hangs check slow 1 c e
[ $((SECONDS - begin)) -lt 80 ] || complain "slow: took $((SECONDS - begin)) s; the programs sleep for 100"
has slow "c \| tiny on the CPU \| FAILED \| (stopped after [0-9]+ s|no time was left for it)"
has slow "e \| train .* \| FAILED \| (stopped after [0-9]+ s|no time was left for it)"
check unknown 2 a x 2>/dev/null
echo "tests/gpu_check.sh: passed in $SECONDS s"
