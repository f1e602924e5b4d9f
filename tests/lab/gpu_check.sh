#!/bin/bash
# Checks and measures the CUDA kernels on a machine with a GPU, in two commands:
#   gpu_check.sh correct   at most 400 s: are results right, and how fast are whole training steps
#   gpu_check.sh speed     at most 300 s: which operations take the time, and what bounds them
# Each command prints one table last, and keeps it as report.md in $OUT, with log.txt (the output of
# all programs) and at most six other files. No file has more than 16 MiB.
# A part that fails or takes too long does not stop the next one; only the smoke test does. Tools
# that are not installed are listed as absent. Exit status 1: something failed.
# Needs bash, coreutils and the kit (`make gpu-kit`). Environment:
#   OUT      folder for results (gpu-correct or gpu-speed next to this script)
#   DEVICE   cuda:0; simt tries the script on the emulator, with small sizes
#   LIMIT    seconds (400 or 300)    TESTS   "loss pool": of all test files only these
#   PEERS    file in which `correct` leaves PyTorch's times for `speed` (/tmp/convoy-peers.jsonl)
#   PYTHON   python3, if it has PyTorch
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
command=${1:-}
case $command in
    correct) limit=${LIMIT:-400} ;; speed) limit=${LIMIT:-300} ;;
    *) echo "usage: gpu_check.sh correct|speed" >&2 && exit 2 ;;
esac
: "${DEVICE:=cuda:0}" "${OUT:=$here/gpu-$command}" "${TESTS:=}" "${KIT:=$here/kit}"
: "${PYTHON:=python3}" "${PEERS:=${TMPDIR:-/tmp}/convoy-peers.jsonl}" "${LD_LIBRARY_PATH:=}"
emulator=$([ "$DEVICE" != simt ] || echo 1)
mkdir -p "$OUT" && work=$(mktemp -d) || exit
warming=""
trap 'kill $warming 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
report=$OUT/report.md log=$OUT/log.txt
true >"$report" && true >"$log" || exit
passed=0 failed=0 absent=0 row_begin=0

# value OBJECT FIELD [DIGITS]: a text of a JSON object, or a number with so many digits; else 0.
value() {
    local pattern="\"$2\": ?(\"[^\"]*\"|[0-9.e+-]+)" found=0
    [[ $1 =~ $pattern ]] && found=${BASH_REMATCH[1]//\"/}
    if [ $# -lt 3 ]; then echo "$found"; else printf '%.*f' "$3" "$found"; fi
}
# row CHECK VERDICT FIGURES: a line of the table.
row() {
    local seconds=$((SECONDS - row_begin))
    row_begin=$SECONDS
    case $2 in
        passed | measured) ((++passed)) ;; absent) ((++absent)) ;; *) ((++failed)) ;;
    esac
    echo "$SECONDS s: $1: $2" >&2
    echo "| ${1//|//} | $2 | ${3//|//} | $seconds |" >>"$report"
}
# run SECONDS COMMAND...: ends the command after so many seconds, and at the end of the limit. Its
# output goes to $work/said and to the log; `why` is how it ended, empty if it succeeded.
run() {
    local most=$(($1 * (emulator ? 20 : 1))) left=$((limit - 5 - SECONDS)) status=0
    shift
    [ "$most" -le "$left" ] || most=$left
    : >"$work/said"
    why="no time was left for it"
    if [ "$most" -gt 0 ]; then
        { timeout -k 2 "$most" "$@" >"$work/said" 2>&1 </dev/null || status=$?; } 2>/dev/null
        case $status in
            0) why="" ;; 124 | 137) why="stopped after $most s" ;; *) why="exit status $status" ;;
        esac
        [ $status -le 128 ] || [ $status -eq 137 ] || why="ended by signal $((status - 128))"
    fi
    { echo "\$ ${*@Q}"; cat "$work/said"; echo "# ${why:-succeeded}"; } >>"$log"
    [ -z "$why" ]
}
# The first line of $work/said that matches PATTERN.
line_with() {
    local line
    while IFS= read -r line || [ -n "$line" ]; do
        [[ $line =~ $1 ]] && echo "$line" && return
    done <"$work/said"
    return 1
}
# How the last program ended, and the most telling line of its output.
reason() {
    local pattern line=
    for pattern in 'off by more than' exception '^ *values:' '^error: ' FATAL simt: '[^ ]'; do
        line=$(line_with "$pattern") && break
    done
    [ "$pattern" != '[^ ]' ] || line=$(tail -n 1 "$work/said")
    read -r line <<<"$line"
    echo "${why:-succeeded}${line:+: ${line:0:300}}"
}
# tool NAME: sets `found` to the program, or writes that it is absent.
tool() {
    found=$(PATH=$PATH:/usr/local/cuda/bin:$(echo /opt/nvidia/nsight-compute/*) command -v "$1") ||
        { row "$1" absent "not in PATH and not in the CUDA toolkit" && return 1; }
}

# ---- correct ---------------------------------------------------------------------------------

# Each file in a process of its own: after a wild access the GPU serves a process no more.
device_tests() {
    local line name files=" " done=0 all=0 pattern='filename="[^"]*test_([a-z0-9_]+)\.cpp"'
    run 20 "$KIT" run_tests -ts=device -ltc -r=xml
    while IFS= read -r line; do
        [[ $line =~ $pattern ]] && name=${BASH_REMATCH[1]} || continue
        [[ -n $TESTS && " $TESTS " != *" $name "* || $files == *" $name "* ]] || files+="$name "
    done <"$work/said"
    for name in $files; do
        run 60 "$KIT" run_tests -nc -ts=device "-sf=*test_$name.cpp" &&
            [[ $(line_with '^.doctest. test cases:') =~ ([1-9][0-9]*)\ passed ]] &&
            ((done += 1, all += BASH_REMATCH[1])) && continue
        row "test_$name" FAILED "$(reason), in$(line_with 'TEST CASE' | cut -d: -f2-)"
    done
    [ $done -gt 0 ] && row "device tests" passed "cases: $all, of $done files" ||
        row "device tests" FAILED "no file passed: $(reason)"
}

# train PRECISION: sets `first` and `last` to the mean of the first and of the last five losses, in
# thousandths.
train() {
    local line loss losses=() sizes=(resnet18 --batch 256 --generated 2560 --steps 60)
    [ -z "$emulator" ] || sizes=(tiny --size 16 --batch 16 --generated 96 --steps 20)
    rm -rf "$work/run"
    run 60 "$KIT" trainer --model "${sizes[@]}" --epochs 100 --log-every 1 --save-every 0 \
        --device "$DEVICE" --precision "$1" --out "$work/run" || return
    while IFS= read -r line; do
        [[ $line == *'"event":"step"'* ]] && loss=$(value "$line" loss 3) || continue
        losses+=($((10#${loss/./})))
    done <"$work/run/log.jsonl"
    [ ${#losses[@]} -ge 10 ] || { why="${#losses[@]} losses" && return 1; }
    first=$(((losses[0] + losses[1] + losses[2] + losses[3] + losses[4]) / 5))
    last=$(((losses[-1] + losses[-2] + losses[-3] + losses[-4] + losses[-5]) / 5))
}
# Both losses must fall by a fifth, and end within a fifth of where they began from each other.
losses() {
    local begin end verdict=FAILED
    train fp32 || { row "training in fp32" FAILED "$(reason)"; return; }
    begin=$first end=$last
    train bf16 || { row "training in bf16" FAILED "$(reason)"; return; }
    ((end * 5 <= begin * 4 && last * 5 <= first * 4 && (end - last) ** 2 * 25 <= begin ** 2)) &&
        verdict=passed
    row "losses fall together" $verdict "$(printf 'fp32 from %.3f to %.3f, bf16 from %.3f to %.3f' \
        ${begin}e-3 ${end}e-3 ${first}e-3 ${last}e-3)"
}

# job NAME auto|off: two processes on one GPU train for an epoch; `off`: without shared memory.
job() {
    local options="resnet18 --batch 64 --generated 640"
    [ -z "$emulator" ] || options="tiny --size 16 --batch 16 --generated 96"
    options="--model $options --epochs 1 --world 2 --coord 127.0.0.1:$((20000 + RANDOM % 9000)) --device $DEVICE --shm $2"
    CONVOY_FACTORS=off CONVOY_CHECK_EVERY=1 run 60 bash -c '"$0" trainer $1 --rank 1 --out "$2/1" &
        "$0" trainer $1 --rank 0 --out "$2/0" && wait $!' "$KIT" "$options" "$work/$1"
}
# They read each other's gradients, and end with the bits of a ring: the sum of two is the same in any order.
peers() {
    local line name="two ranks on one GPU"
    job ring off && job peers auto || { row "$name" FAILED "$(reason)"; return; }
    line=$(line_with "do not share memory") && { row "$name" absent "$line"; return; }
    line=$(line_with "sum gradients in each other") &&
        [ "$(sha256sum <"$work/ring/0/latest/model.safetensors")" = "$(sha256sum <"$work/peers/0/latest/model.safetensors")" ] &&
        row "$name" passed "$line" || row "$name" FAILED "$(reason)"
}

# What a failure is called: only a Hopper GPU has TMA.
failed() { line_with 'needs a Hopper GPU' >/dev/null && echo absent || echo FAILED; }

# bf16 against fp32 at the sizes of real layers (tests/test_real_sizes.cpp). real_sizes [NOTE]
real_sizes() {
    local line count=0 worst=0 where="" sizes="resnet50:256 vgg16:256"
    [ -z "$emulator" ] || sizes=tiny:2
    CONVOY_TEST_SIZES=$sizes run 90 "$KIT" run_tests -nc '-tc=real sizes*'
    while read -r line; do
        [[ $line =~ ^real:\ (.*)\ off\ by\ ([0-9]+)e-6$ ]] || continue
        ((++count, BASH_REMATCH[2] > worst)) && worst=${BASH_REMATCH[2]} where=${BASH_REMATCH[1]}
    done <"$work/said"
    [ -z "$why" ] && [ $count -gt 0 ] && row "real sizes${1:+ $1}" passed "$count ops; worst ${worst}e-6: $where" ||
        row "real sizes${1:+ $1}" "$(failed)" "$count ops, then $(reason)"
}

# train_speed MODEL:BATCH:PRECISION [NOTE]: sets convoy[MODEL:BATCH:PRECISION NOTE].
train_speed() {
    local line model batch precision what="$1${2:+ $2}"
    IFS=: read -r model batch precision <<<"$1"
    CONVOY_GRAPH=on run 30 "$KIT" trainer bench train --device "$DEVICE" --precision "$precision" \
        --model "$model" --batch "$batch" "${sizes[@]}" --json
    line=$(line_with '^[{]') || { row "train $what" "$(failed)" "$(reason)"; return; }
    convoy[$what]=$(value "$line" images_per_second 0)
    row "train $what" measured "${convoy[$what]} img/s, $(value "$line" percent_of_peak 0) % of\
 peak, $(value "$line" device_memory_mb 0) MB"
}
# Convoy alone, then PyTorch alone.
end_to_end() {
    local what line form speed ours models=(resnet50:256:bf16 vgg16:256:bf16 resnet18:512:bf16
        alexnet:1024:bf16 resnet50:256:tf32 resnet50:256:fp32)
    local -A convoy=()
    local sizes=(--steps 20)
    [ -z "$emulator" ] || models=(tiny:2:bf16 tiny:2:fp32) sizes=(--size 16 --steps 1)
    # Nothing else may use the GPU from here on.
    while kill -0 "$warming" 2>/dev/null && [ $SECONDS -lt $((limit - 170)) ]; do sleep 1; done
    kill "$warming" 2>/dev/null
    warming=""
    for what in "${models[@]}"; do train_speed "$what"; done
    for what in "${models[@]:0:2}"; do
        [[ $what == *:bf16 ]] || continue
        CONVOY_TEST_TMA=on train_speed "$what" "by TMA"
        CONVOY_TEST_TMA=wide train_speed "$what" "by TMA, wide tiles"
    done
    run 999 env LD_LIBRARY_PATH="$library_path" "$PYTHON" "$here/compare" gpu --models "${models[*]}"
    cp "$work/said" "$OUT/peers.jsonl" && cp "$work/said" "$PEERS"
    while IFS= read -r line; do
        form=$(value "$line" form) what=$(value "$line" model):$(value "$line" batch):$(value "$line" precision)
        [[ $line == '{'* && $form != 0 ]] || continue
        speed=$(value "$line" images_per_second 0) ours=${convoy[$what]:-0}
        row "train $what, PyTorch $form" measured \
            "$speed img/s; Convoy: $((speed > 0 ? 100 * ours / speed : 0)) % of it"
    done <"$PEERS"
    [ -n "$why" ] || return
    line_with 'No such file|ModuleNotFoundError|finds no GPU' >/dev/null && form=absent || form=FAILED
    row PyTorch $form "$(reason)"
}

correct() {
    # torch.compile takes minutes: end_to_end() finds what it made on the disk.
    "$PYTHON" "$here/compare" gpu --warm >"$work/warm" 2>&1 </dev/null &
    warming=$!
    run 15 "$KIT" run_tests -nc -ts=device \
        '-sf=*test_pool.cpp,*test_mma.cpp' || { row "smoke test" FAILED "$(reason)" && return; }
    row "smoke test" passed "$(line_with '^.doctest. test cases:')"
    device_tests
    losses
    peers
    real_sizes
    CONVOY_TEST_TMA=on real_sizes "by TMA"
    end_to_end
}

# ---- speed -----------------------------------------------------------------------------------

bench() { # SECONDS PRECISION FILTER [OPTION...]
    run "$1" "$KIT" trainer bench kernels --device "$DEVICE" --precision "$2" --filter "$3" "${@:4}"
}
ceilings() {
    local precision line name speed error
    for precision in fp32 tf32 bf16; do
        bench 20 $precision "tiny loss" ${emulator:+--batch 1}
        line=$(line_with 'limit [0-9]+') && row "multiply-adds in $precision" measured "${line##*; }" ||
            row "multiply-adds in $precision" FAILED "$(reason)"
    done
    run 40 "$KIT" gemm_ladder ${emulator:+64} || row ladder FAILED "$(reason)"
    while read -r name precision speed error; do
        [[ $name != production* && ! $name =~ ^(wgmma|TMA|persistent|cuBLAS)$ ]] ||
            row "$name, $precision" measured "$speed TFLOP/s, worst error $error"
    done <"$work/said"
    run 40 "$KIT" bandwidth_ladder || row "bandwidth ladder" FAILED "$(reason)"
    while read -r name precision speed error; do
        [[ $precision != fp32 && $precision != bf16 ]] ||
            row "batch norm's gradient, $name, $precision" measured "$speed GB/s, worst error $error"
    done <"$work/said"
}

# Each layer of two models; `largest`: lines "µs of all layers, tab, name", the largest first. PyTorch's
# layers have no relu.
operations() {
    local model line name words theirs ms total count=0 models=(resnet50 vgg16)
    local -A cudnn=() objects=() ours=() sums=()
    [ -z "$emulator" ] || models=(tiny)
    while IFS= read -r line; do
        name=$(value "$line" name)
        [[ $name == 0 ]] || cudnn[$name]=$(value "$line" milliseconds 4)
    done 2>/dev/null <"$PEERS"
    [ ${#cudnn[@]} -gt 0 ] || row "times of cuDNN" absent "no $PEERS: \`correct\` writes it"
    true >"$work/operations" >"$OUT/operations.jsonl"
    for model in "${models[@]}"; do
        bench 90 bf16 "$model ${emulator:+linear}" --batch $((emulator ? 1 : 256)) --json
        while IFS= read -r line; do
            [[ $line == "{"* ]] || continue
            name="$(value "$line" model) $(value "$line" op) $(value "$line" shapes) $(value "$line" pass)"
            ms=$(value "$line" milliseconds 4)
            total=$((10#${ms/./} * $(value "$line" layers) / 10))
            objects[$name]=$line
            printf '%d\t%s\n' $total "$name" >>"$work/operations"
            echo "$line" >>"$OUT/operations.jsonl"
        done <"$work/said"
        [ -z "$why" ] || row "bench kernels, $model" FAILED "$(reason)"
    done
    sort -rn "$work/operations" >"$work/largest"
    while IFS=$'\t' read -r total name; do
        line=${objects[$name]} theirs=${cudnn[${name/ + relu/}]:-} ms=$(value "${objects[$name]}" milliseconds 4)
        [ $((++count)) -gt 30 ] || row "$name" measured "$(value "$line" layers) x $ms ms, $(value "$line" rate 0) $(value \
            "$line" unit), $(value "$line" percent 0) % of limit${theirs:+; cuDNN: $theirs ms, $((
            10#${theirs/./} * 100 / (10#${ms/./} + 1))) %}"
        read -ra words <<<"$name"
        model="${words[0]} ${words[1]} ${words[-1]}"  # as "resnet50 conv2d forward"
        [ -z "$theirs" ] || ((ours[$model] += total,
            sums[$model] += 10#${theirs/./} * $(value "$line" layers) / 10))
    done <"$work/largest"
    for model in "${!sums[@]}"; do
        row "$model, all layers" measured "$((ours[$model] / 1000)) ms; cuDNN: $((sums[$model] / 1000)) ms,\
 $((sums[$model] * 100 / (ours[$model] + 1))) %"
    done
}

trace() {
    local sizes=(resnet50 --batch 256 --generated 1536)
    [ -z "$emulator" ] || sizes=(tiny --size 16 --batch 8 --generated 48)
    CONVOY_GRAPH=off run 60 "$KIT" trainer --model "${sizes[@]}" --steps 4 --trace 3:3 --save-every 0 \
        --device "$DEVICE" --precision bf16 --out "$work/run" &&
        cp "$work/run/trace-3-3-rank0.json.gz" "$OUT/trace.json.gz" &&
        row "one step traced" measured "trace.json.gz, for ui.perfetto.dev" ||
        row "one step traced" FAILED "$(reason)"
}

counters() {
    local found section sections=() model=(resnet50 --batch 256)
    [ -z "$emulator" ] || model=(tiny --batch 1 --size 16)
    tool ncu && [ -s "$work/largest" ] || return
    for section in SpeedOfLight WarpStateStats Occupancy MemoryWorkloadAnalysis; do
        sections+=(--section "$section")
    done
    # Kernels of a step, a few of each size; the clocks are left alone.
    run 120 "$found" --clock-control none "${sections[@]}" --launch-skip 200 --launch-count 60 --kernel-name \
        'regex:product|moments|strips|condense|normalise|gradient|pool|forward|grad_|map|sgd|sums|copy|reorder|epilogue' \
        "$KIT" trainer bench train --device "$DEVICE" --precision bf16 --model "${model[@]}" --steps 1
    cp "$work/said" "$OUT/ncu.txt"
    [ -z "$why" ] && row "ncu: ${model[0]}" measured "$(line_with 'Duration')" ||
        row "ncu: ${model[0]}" FAILED "$(reason)"
}

sanitizer() {
    local found kind at files='*test_loss.cpp,*test_pool.cpp,*test_mma.cpp'
    tool compute-sanitizer || return
    [ -n "$emulator" ] || files+=',*test_moments.cpp,*test_tensor_cores.cpp,*test_linear.cpp'
    for kind in racecheck memcheck; do
        # The tests of cp.async read copies before they have arrived, which is a race on purpose.
        run 60 "$found" --tool $kind --error-exitcode 9 --print-limit 5 \
            "$KIT" run_tests -nc -ts=device "-sf=$files" '-tce=cp.async*'
        at=$(line_with 'SUMMARY')
        [ -z "$why" ] && row $kind passed "${at##*= }" || row $kind FAILED \
            "$why${at:+: ${at##*= }}: $(line_with '===.*(Invalid|hazard|rror|iverge)')"
    done
}

speed() {
    ceilings
    operations
    trace
    counters
    sanitizer
}

# cuBLAS is opened at run time: from the system, from the toolkit, or from a Python package.
# PyTorch brings its own libraries and gets the path as it was.
library_path=$LD_LIBRARY_PATH
for at in /usr/local/cuda*/lib64 $(timeout 10 "$PYTHON" -c \
    'import sys; print(*(p + "/nvidia/*/lib" for p in sys.path if p))' 2>/dev/null); do
    ! compgen -G "$at/libcublas.so.1[23]" >/dev/null || LD_LIBRARY_PATH=$at:$library_path
done
export LD_LIBRARY_PATH CONVOY_TEST_DEVICE=$DEVICE
{
    [ ! -r "$here/cuda_release" ] || echo "Built by CUDA $(<"$here/cuda_release")."
    timeout 10 nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.draw,temperature.gpu \
        --format=csv 2>/dev/null || echo "There is no nvidia-smi."
} >"$work/head"
$command
{
    cat "$work/head"
    printf '\n| check | verdict | figures | s |\n| --- | --- | --- | --- |\n'
    cat "$report"
    printf '\n%d passed or measured, %d failed, %d absent, in %d s\n' \
        $passed $failed $absent $SECONDS
} >"$work/report"
mv "$work/report" "$report"
for file in "$OUT"/*; do
    [ "$(stat -c %s "$file")" -lt 16000000 ] ||
        { tail -c 15000000 "$file" >"$work/end" && mv "$work/end" "$file"; }
done
cat "$report"
[ $failed -eq 0 ]
