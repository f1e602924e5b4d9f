#!/usr/bin/env bash
# Speed without a GPU: compiles the CUDA kernels and compares them with tests/instructions.txt: registers,
# spilled bytes, and the instructions of the hot loop. In a kernel that multiplies on tensor cores this is
# the shortest loop with a product (HMMA, HGMMA). In other kernels it is the innermost loop with the most
# accesses of 16 bytes. Of products in fp32 it counts registers and spilled bytes alone. Fails if a number is larger than in the table, if a kernel that is not in the table
# spills, or if a loop of the second kind has more than 110 instructions per access. In the time of one
# access at 4.3 TB/s, a multiprocessor of an H200 (132 at 1.75 GHz, 4 instructions a cycle) issues so many.
# ELU and GELU alone may have more: they compute an exponential or an error function per number.
#   tests/instructions.sh            compares
#   tests/instructions.sh --write    writes the table; commit it together with the kernels
set -eu
cd "$(dirname "$0")/.."
table=tests/instructions.txt sources="conv2d batch_norm group_norm peer_sum pool elementwise moments column_sums depthwise"
architectures="sm_80 sm_90a" most=110

leave_out() {
    echo "instructions: left out, as $1"
    exit 0
}
command -v nvcc >/dev/null || leave_out "there is no nvcc"
release="nvcc $(nvcc --version | sed -nE 's/.*release ([0-9.]+).*/\1/p')"
[ "${1:-}" = --write ] || grep -q "^# $release:" "$table" ||
    leave_out "this is $release, and $table is for another release; --write makes a new table"
for architecture in $architectures; do
    nvcc --list-gpu-code | grep -qx "${architecture%a}" || leave_out "$release does not compile for $architecture"
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

# measure CUBIN: a line for each kernel: registers, spilled bytes, instructions, products and accesses of the
# hot loop, the most instructions per access of any loop, name.
measure() {
    { cuobjdump --dump-resource-usage "$1" && cuobjdump -sass "$1"; } | awk '
        function add_line() {
            if (name == "") return
            print registers[name], spilled[name], best ? best : "-", products, accesses, worst, name
        }
        $1 == "Function" && $2 != ":" { name = $2; sub(/:$/, "", name) }
        $1 ~ /^REG:/ {
            for (i = 1; i <= NF; ++i) { split($i, field, ":"); usage[field[1]] = field[2] }
            registers[name] = usage["REG"]; spilled[name] = usage["STACK"] + usage["LOCAL"]; name = ""
        }
        $1 == "Function" && $2 == ":" {
            add_line(); name = $3; n = best = products = accesses = worst = end = 0
            delete at; delete sum; delete wide; sum[0] = wide[0] = 0
        }
        $1 ~ /^\/\*[0-9a-f]+\*\/$/ && name != "" {
            sub(/;.*/, "")  # the instruction as bits
            address = $1; gsub(/[\/*]/, "", address); sub(/^0+/, "", address)
            at[address] = ++n; sum[n] = sum[n - 1] + / HG?MMA/
            wide[n] = wide[n - 1] + / (LDG|STG)[.A-Z0-9]*[.]128/
            if (match($0, / BRA.* 0x[0-9a-f]+/)) {
                target = substr($0, RSTART, RLENGTH); sub(/.* 0x0*/, "", target)
                if (target in at) {
                    first = at[target]; size = n - first + 1
                    inside = sum[n] - sum[first - 1]; moved = wide[n] - wide[first - 1]
                    if (inside && (!products || size < best)) { best = size; products = inside; accesses = worst = 0 }
                    if (!products && moved && first > end) {  # else there is such a loop in this one
                        end = n
                        if (moved >= accesses) { best = size; accesses = moved }
                        if (size / moved > worst) worst = size / moved
                    }
                }
            }
        }
        END { add_line() }' | c++filt |
        sed -E 's/convoy::cuda::|convoy::|\(anonymous namespace\)::|\(anonymous\)::|void //g; s/__nv_bfloat16/bf16/g
            s/\(Activation::Kind\)4/elu/; s/\(Activation::Kind\)9/gelu/; s/\(Activation::Kind\)0/none/; s/\(Activation::Kind\)1/relu/; s/\(Activation::Kind\)2/relu6/
            s/\(Activation::Kind\)7/silu/; s/\(Activation::Kind\)8/hardswish/; s/\((Activation::Kind|int|bool)\)//g; s/\(.*//'
}

for architecture in $architectures; do
    for source in $sources; do
        nvcc -std=c++20 -O3 -I. --expt-relaxed-constexpr -DFMT_CONSTEVAL= -DFMT_USE_CONSTEXPR=1 -DCONVOY_ARCH='""' \
            -arch="$architecture" -cubin "kernels/cuda/$source.cu" -o "$work/cubin"
        measure "$work/cubin" | sort -k7 | sed "s/^/$architecture /"
    done
done >"$work/kernels"
{
    echo "# $release: what kernels/cuda compiles to; made and compared by tests/instructions.sh"
    echo "#       registers  spilled  instructions  products  accesses  kernel"
    awk '$4 != "-" || / product_kernel</ {
        printf "%-7s %9s %8s %13s %9s %9s ", $1, $2, $3, $4, $5, $6
        for (i = 8; i <= NF; ++i) printf " %s", $i
        print ""
    }' "$work/kernels"
} >"$work/table"
awk -v most="$most" '
    $4 == "-" && $3 > 0 && !/ product_kernel</ { print "instructions: FAILED: registers are spilled: " $0; bad = 1 }
    $7 > most && !/Activate[a-zA-Z]*<(elu|gelu)>/ { print "instructions: FAILED: more than " most " instructions per access of 16 bytes: " $0; bad = 1 }
    END { exit bad }' "$work/kernels"

if [ "${1:-}" = --write ]; then
    cp "$work/table" "$table"
    exit 0
fi
awk -v table="$table" '
    /^#/ { next }
    { key = $1; for (i = 7; i <= NF; ++i) key = key " " $i }
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
