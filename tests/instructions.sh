#!/usr/bin/env bash
# Speed without a GPU: compiles the CUDA kernels and compares those that multiply on tensor cores with
# tests/instructions.txt: registers, spilled bytes, and the instructions of the hot loop, which is the
# shortest loop with a product (HMMA). Fails if there are more, or if another kernel spills.
#   tests/instructions.sh            compares
#   tests/instructions.sh --write    writes the table; commit it together with the kernels
set -eu
cd "$(dirname "$0")/.."
table=tests/instructions.txt sources="conv2d batch_norm pool" architectures="sm_80 sm_90"

leave_out() {
    echo "instructions: left out, as $1"
    exit 0
}
command -v nvcc >/dev/null || leave_out "there is no nvcc"
release="nvcc $(nvcc --version | sed -nE 's/.*release ([0-9.]+).*/\1/p')"
[ "${1:-}" = --write ] || grep -q "^# $release:" "$table" ||
    leave_out "this is $release, and $table is for another release; --write makes a new table"
for architecture in $architectures; do
    nvcc --list-gpu-code | grep -qx "$architecture" || leave_out "$release does not compile for $architecture"
done
PATH=$PATH:$PWD/build/disassembler/tools
if ! command -v cuobjdump >/dev/null || ! command -v nvdisasm >/dev/null; then
    echo "instructions: installs cuobjdump and nvdisasm from PyPI, as the CUDA toolkit here lacks them"
    python3 -m venv build/disassembler
    build/disassembler/bin/pip install -q nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
    ln -sfn "$(dirname "$(find "$PWD/build/disassembler" -name cuobjdump -type f)")" build/disassembler/tools
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# measure CUBIN: a line for each kernel: registers, spilled bytes, instructions and products of the hot loop, name.
measure() {
    { cuobjdump --dump-resource-usage "$1" && cuobjdump -sass "$1"; } | awk '
        function add_line() {
            if (name != "") print registers[name], spilled[name], best ? best : "-", best ? products : "-", name
        }
        $1 == "Function" && $2 != ":" { name = $2; sub(/:$/, "", name) }
        $1 ~ /^REG:/ {
            for (i = 1; i <= NF; ++i) { split($i, field, ":"); usage[field[1]] = field[2] }
            registers[name] = usage["REG"]; spilled[name] = usage["STACK"] + usage["LOCAL"]; name = ""
        }
        $1 == "Function" && $2 == ":" { add_line(); name = $3; n = best = products = 0; delete at; delete sum; sum[0] = 0 }
        $1 ~ /^\/\*[0-9a-f]+\*\/$/ && name != "" {
            sub(/;.*/, "")  # the instruction as bits
            address = $1; gsub(/[\/*]/, "", address); sub(/^0+/, "", address)
            at[address] = ++n; sum[n] = sum[n - 1] + / HMMA/
            if (match($0, / BRA.* 0x[0-9a-f]+/)) {
                target = substr($0, RSTART, RLENGTH); sub(/.* 0x0*/, "", target)
                if (target in at) {
                    first = at[target]; inside = sum[n] - sum[first - 1]
                    if (inside && (!best || n - first + 1 < best)) { best = n - first + 1; products = inside }
                }
            }
        }
        END { add_line() }' | c++filt |
        sed -E 's/convoy::cuda::|\(anonymous namespace\)::|\(anonymous\)::|void //g; s/__nv_bfloat16/bf16/g; s/\(.*//'
}

for architecture in $architectures; do
    for source in $sources; do
        nvcc -std=c++20 -O3 -I. --expt-relaxed-constexpr -DFMT_CONSTEVAL= -DFMT_USE_CONSTEXPR=1 -DCONVOY_ARCH='""' \
            -arch="$architecture" -cubin "kernels/cuda/$source.cu" -o "$work/cubin"
        measure "$work/cubin" | sort -k5 | sed "s/^/$architecture /"
    done
done >"$work/kernels"
{
    echo "# $release: what kernels/cuda compiles to; made and compared by tests/instructions.sh"
    echo "#      registers  spilled  instructions  HMMA  kernel"
    awk '$5 != "-" {
        printf "%s %10s %8s %13s %5s ", $1, $2, $3, $4, $5
        for (i = 6; i <= NF; ++i) printf " %s", $i
        print ""
    }' "$work/kernels"
} >"$work/table"
awk '$5 == "-" && $3 > 0 { print "instructions: FAILED: registers are spilled: " $0; bad = 1 } END { exit bad }' "$work/kernels"

if [ "${1:-}" = --write ]; then
    cp "$work/table" "$table"
    exit 0
fi
awk -v table="$table" '
    /^#/ { next }
    { key = $1; for (i = 6; i <= NF; ++i) key = key " " $i }
    NR == FNR { for (i = 2; i <= 4; ++i) limit[key, i] = $i; known[key] = 1; next }
    !(key in known) { print "not in " table ": " key; bad = 1; next }
    {
        split("registers,spilled bytes,instructions in the hot loop", what, ",")
        for (i = 2; i <= 4; ++i) {
            if ($i + 0 == limit[key, i] + 0) continue
            print key ": " $i " " what[i - 1] ", " table " has " limit[key, i]
            if ($i + 0 > limit[key, i] + 0) bad = 1
        }
        delete known[key]; ++count
    }
    END {
        for (key in known) { print "no kernel, but in " table ": " key; bad = 1 }
        print "instructions: " count " kernels compared with " table
        exit bad
    }' "$table" "$work/table" || {
    echo "instructions: FAILED; if the change is meant, update the table with tests/instructions.sh --write" >&2
    exit 1
}
