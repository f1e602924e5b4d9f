#!/bin/bash
# Runs everything that needs a GPU, most valuable first: are results right, then how fast.
#   tools/gpu_check.sh [PART...]     without PART all, in at most 9 minutes
#     a  the tests of the CUDA kernels on the GPU; of each that fails, by how much
#     b  compute-sanitizer (memcheck, racecheck, synccheck) on small tests, where it is installed
#     c  tiny trained as on the CPU: fp32, tf32, bf16, with a CUDA graph and without
#     d  bench kernels, in percent of the GPU's limits and of cuBLAS
#     e  bench train of four models in bf16; beside PyTorch where python3 has it with CUDA
#     f  the ladder of products
# A part that fails or takes too long does not stop the next one. Results are written line by line:
#   $OUT/report.md (one table)   $OUT/results.jsonl (the same)   $OUT/log.txt (what programs said)
# Needs bash, coreutils and the kit (`make gpu-kit`). Exit status 1: something failed.
# Environment: OUT (gpu-results beside this script), DEVICE (cuda:0), TOTAL (540 seconds for six
# parts), TESTS ("loss pool": of part a only test_loss.cpp and test_pool.cpp), PYTHON, SANITIZER.
# DEVICE=simt TRAINER=./trainer-simt tries the script on the emulator, with small sizes.
# Tried: with DEVICE=simt. Not tried: on a GPU, with compute-sanitizer, with PyTorch on a GPU.
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
: "${DEVICE:=cuda:0}" "${OUT:=$here/gpu-results}" "${TOTAL:=540}" "${TESTS:=}" "${PYTHON:=python3}"
: "${TRAINER:=$here/trainer}" "${RUN_TESTS:=$here/run_tests}" "${LADDER:=$here/gemm_ladder}"
: "${COMPARE:=$here/compare}" "${SANITIZER:=}" "${LD_LIBRARY_PATH:=}"
declare -A share=([a]=115 [b]=75 [c]=45 [d]=105 [e]=170 [f]=30)  # seconds of 540
[ $# -gt 0 ] || set -- a b c d e f
for part; do
    [ -n "${share[$part]:-}" ] || { echo "gpu_check: no part '$part': a b c d e f" >&2; exit 2; }
done
emulator=$([ "$DEVICE" != simt ] || echo yes)
mkdir -p "$OUT" && work=$(mktemp -d) || exit
trap 'rm -rf "$work"' EXIT
report=$OUT/report.md results=$OUT/results.jsonl log=$OUT/log.txt
true >"$log" && true >"$results" || exit
passed=0 failed=0 absent=0 row_begin=0

# value OBJECT FIELD [DIGITS]: a text of a JSON object, or a number with so many digits; or 0.
value() {
    local pattern="\"$2\": ?(\"[^\"]*\"|[0-9.e+-]+)" found=0
    [[ $1 =~ $pattern ]] && found=${BASH_REMATCH[1]//\"/}
    if [ $# -lt 3 ]; then echo "$found"; else printf '%.*f' "$3" "$found"; fi
}
quoted() {
    local text=${1//\\/\\\\}
    text=${text//\"/\\\"}
    echo "\"${text//[$'\001'-$'\037']/ }\""
}
# row CHECK VERDICT FIGURES [OBJECT]: a line of the table; OBJECT is kept in results.jsonl.
row() {
    local seconds=$((SECONDS - row_begin))
    row_begin=$SECONDS
    case $2 in
        passed | measured) ((++passed)) ;; absent) ((++absent)) ;; *) ((++failed)) ;;
    esac
    echo "| $part | ${1//|//} | $2 | ${3//|//} | $seconds |" | tee -a "$report"
    printf '{"part":"%s","check":%s,"verdict":"%s","figures":%s,"seconds":%d%s}\n' "$part" \
        "$(quoted "$1")" "$2" "$(quoted "$3")" "$seconds" "${4:+,\"row\":$4}" >>"$results"
}
# run SECONDS COMMAND...: no longer than that, nor than the part may. What it says goes to
# $work/said and to the log; `why` is how it ended, empty where it succeeded.
run() {
    local limit=$1 left=$((part_end - SECONDS)) status=0
    shift
    [ "$limit" -le "$left" ] || limit=$left
    : >"$work/said"
    why="no time was left for it"
    if [ "$limit" -gt 0 ]; then
        { timeout -k 2 "$limit" "$@" >"$work/said" 2>&1 </dev/null || status=$?; } 2>/dev/null
        case $status in
            0) why="" ;; 124 | 137) why="stopped after $limit s" ;; *) why="exit status $status" ;;
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
# How the last program ended, and the most telling line of what it said.
reason() {
    local pattern line=
    for pattern in 'off by more than' exception '^ *values:' '^error: ' FATAL simt: '[^ ]'; do
        line=$(line_with "$pattern") && break
    done
    [ "$pattern" != '[^ ]' ] || line=$(tail -n 1 "$work/said")
    read -r line <<<"$line"
    echo "${why:-succeeded}${line:+: $line}"
}

# The tests of one file, or of one name in it. A comma would separate two names.
run_tests() {
    CONVOY_TEST_DEVICE=$DEVICE run "$1" "$RUN_TESTS" -nc -ts=device "-sf=*test_$2.cpp" \
        "-tc=${3//,/?}" && [[ $(line_with '^.doctest. test cases:') =~ ([0-9]+)\ passed ]] &&
        cases=${BASH_REMATCH[1]} && [ "$cases" -gt 0 ]
}
part_a() {
    local line file name files=" " bad="" names pattern='filename="[^"]*test_([a-z0-9_]+)\.cpp"'
    run 20 "$RUN_TESTS" -ts=device -ltc -r=xml
    while IFS= read -r line; do
        [[ $line =~ $pattern ]] && name=${BASH_REMATCH[1]} || continue
        [[ -n $TESTS && " $TESTS " != *" $name "* || $files == *" $name "* ]] || files+="$name "
    done <"$work/said"
    [ "$files" != " " ] || row "list of tests" FAILED "none is in the suite: $(reason)"
    for file in $files; do
        run_tests 30 "$file" '*' && row "test_$file" passed "cases: $cases" && continue
        row "test_$file" FAILED "$(reason)"
        bad+=" $file"
    done
    # Each case in a process of its own: after a wild access the GPU serves a process no more.
    for file in $bad; do
        run 20 "$RUN_TESTS" -nc -ts=device -ltc "-sf=*test_$file.cpp"
        mapfile -t names <"$work/said"
        for name in "${names[@]}"; do
            [[ $name == '[doctest]'* || $name == ===* ]] || run_tests 15 "$file" "$name" ||
                row "test_$file: $name" FAILED "$(reason)"
        done
    done
}

part_b() {
    local tool at found="" files='*test_loss.cpp,*test_pool.cpp,*test_mma.cpp'
    [ -n "$emulator" ] || files+=',*test_moments.cpp,*test_tensor_cores.cpp,*test_linear.cpp'
    for at in /opt/cuda*/bin/ /usr/local/cuda*/bin/ "$here/"; do
        [ ! -x "${at}compute-sanitizer" ] || found=${at}compute-sanitizer
    done
    found=${SANITIZER:-$(command -v compute-sanitizer || echo "$found")}
    [ -n "$found" ] || { row compute-sanitizer absent "not found in PATH or the toolkit"; return; }
    for tool in memcheck racecheck synccheck; do
        # The tests of cp.async read copies before they have arrived, which is a race on purpose.
        CONVOY_TEST_DEVICE=$DEVICE run 40 "$found" --tool $tool --error-exitcode 9 \
            --print-limit 5 "$RUN_TESTS" -nc -ts=device "-sf=$files" '-tce=cp.async*'
        at=$(line_with 'SUMMARY')
        [ -n "$why" ] || { row $tool passed "${at##*= }"; continue; }
        row $tool FAILED "$why${at:+: ${at##*= }}: $(line_with '===.*(Invalid|hazard|rror|iverge)')"
    done
}

# train OPTION...: ten steps of tiny; `losses` are theirs, in millionths.
train() {
    local line loss sizes=(--batch 32 --generated 352)
    [ -z "$emulator" ] || sizes=(--size 16 --batch 8 --generated 32)
    rm -rf "$work/run" && losses=()
    run 30 "$TRAINER" --model tiny "${sizes[@]}" --epochs 1 --log-every 1 --save-every 0 \
        --out "$work/run" "$@" || return
    while IFS= read -r line; do
        [[ $line == *'"event":"step"'* ]] && loss=$(value "$line" loss 6) || continue
        losses+=($((10#${loss/./})))
    done <"$work/run/log.jsonl"
}
# compare CHECK ALLOWED LOSS...: `losses` with those, at most so many millionths apart.
compare() {
    local i a=0 b=0 most=0 verdict=FAILED check=$1 allowed=$2 want=("${@:3}")
    for i in "${!want[@]}"; do
        a=${losses[i]:-0} b=${want[i]}
        most=$((a - b > most ? a - b : b - a > most ? b - a : most))
    done
    [ "$most" -gt "$allowed" ] || [ ${#want[@]} -ne ${#losses[@]} ] || [ ${#want[@]} -eq 0 ] ||
        verdict=passed
    row "$check" $verdict "${#losses[@]} losses of ${#want[@]}; $(printf \
        'last %.6f, want %.6f; largest difference %.6f, allowed %.6f' \
        "${a}e-6" "${b}e-6" "${most}e-6" "${allowed}e-6")"
}
# as_cpu CHECK ALLOWED OPTION...
as_cpu() {
    train --device "$DEVICE" "${@:3}" || { row "$1" FAILED "$(reason)"; return; }
    compare "$1, as the CPU" "$2" "${cpu[@]}"
}
part_c() {
    local precision allowed cpu off
    train --device cpu || { row "tiny on the CPU" FAILED "$(reason)"; return; }
    cpu=("${losses[@]}")
    # fp32: sums in another order, grown by the steps. tf32 and bf16 round what is multiplied to
    # 2^-11 and 2^-8 of its size, a dozen times in a row (tests/test_mixed.cpp). The emulator was
    # off by 0.000001, 0.005 and 0.005 in ten steps of 16 images 16x16.
    for precision in fp32:100 tf32:20000 bf16:50000; do
        allowed=${precision#*:} precision=${precision%:*}
        CONVOY_GRAPH=off as_cpu "tiny in $precision, op by op" "$allowed" --precision $precision
        off=("${losses[@]}")
        CONVOY_GRAPH=on as_cpu "tiny in $precision, a CUDA graph" "$allowed" --precision $precision
        compare "tiny in $precision, a CUDA graph as op by op" 0 "${off[@]}"
    done
}

part_d() {
    local what precision count verdict line beside sets=("bf16:vgg16 conv2d" "bf16:alexnet linear"
        "bf16:resnet50 conv2d " "bf16:resnet50 batch_norm" "bf16:resnet50 conv2d_grad"
        "bf16:vgg16 sgd" "bf16:resnet50 re" "tf32:vgg16 conv2d" "fp32:vgg16 conv2d")
    [ -z "$emulator" ] || sets=("fp32:tiny softmax")
    for what in "${sets[@]}"; do
        precision=${what%%:*} count=0 verdict=FAILED
        run 20 "$TRAINER" bench kernels --device "$DEVICE" --precision "$precision" \
            --filter "${what#*:}" --json
        while IFS= read -r line; do
            [[ $line == "{"* ]] && count=$((count + 1)) || continue
            beside=$(value "$line" percent_of_cublas 0)
            [ "$beside" != 0 ] && beside=", $beside % of cuBLAS" || beside=
            row "$precision $(value "$line" model) $(value "$line" op) $(value "$line" shapes)" \
                measured "$(value "$line" milliseconds 4) ms, $(value "$line" rate 0)\
 $(value "$line" unit), $(value "$line" percent 0) % of limit$beside" "$line"
        done <"$work/said"
        # Rows that were timed count, also where there was no time for all of them.
        [[ $count -eq 0 || $why != stopped* ]] || verdict=measured
        [ -z "$why" ] || row "bench kernels, $what" $verdict "$count rows, then $(reason)"
    done
}

part_e() {
    local what form line sets=(resnet50:256 vgg16:256 alexnet:1024 resnet18:512) sizes=(--steps 20)
    [ -z "$emulator" ] || sets=(tiny:2) sizes=(--size 16 --steps 1)
    for what in "${sets[@]}"; do
        run 40 "$TRAINER" bench train --device "$DEVICE" --precision bf16 --model "${what%:*}" \
            --batch "${what#*:}" "${sizes[@]}" --json
        line=$(line_with '^[{]') || { row "train $what bf16" FAILED "$(reason)"; continue; }
        row "train $what bf16" measured "$(value "$line" images_per_second 1) img/s,\
 $(value "$line" percent_of_peak 0) % of peak, $(value "$line" device_memory_mb 0) MB" "$line"
    done
    run 60 "$PYTHON" -c 'import torch, torchvision; assert torch.cuda.is_available(), "no GPU"' ||
        { row PyTorch absent "$(reason)"; return; }
    for form in channels_last compiled; do  # the one that needs a compiler last
        for what in "${sets[@]}"; do
            run 80 "$PYTHON" "$COMPARE" train --trainer "$TRAINER" --device cuda --form $form --json \
                --precision bf16 --model "${what%:*}" --batch "${what#*:}" --steps 20 --rounds 1
            line=$(line_with '^[{]') ||
                { row "train $what bf16, PyTorch $form" FAILED "$(reason)"; continue; }
            row "train $what bf16, PyTorch $form" measured "Convoy $(value \
                "${line#*\"convoy\":}" images_per_second 1) img/s, PyTorch $(value \
                "${line##*\"$form\":}" images_per_second 1) img/s" "$line"
        done
    done
}

part_f() {
    local line name rung='^(.{14}) (fp32|tf32|bf16) +([^ ]+) +([^ ]+) +([^ ]+)$'
    run 60 "$LADDER" ${emulator:+64}
    while IFS= read -r line; do
        [[ $line =~ $rung ]] || continue
        read -r name <<<"${BASH_REMATCH[1]}"
        row "ladder: ${BASH_REMATCH[2]} $name" measured \
            "${BASH_REMATCH[3]} TFLOP/s, ${BASH_REMATCH[4]} % of cuBLAS or of the best, worst error\
 ${BASH_REMATCH[5]}"
    done <"$work/said"
    if [ -z "$emulator" ] && line_with '^no GPU' >/dev/null; then why="not run on a GPU"; fi
    [ -z "$why" ] || row "ladder" FAILED "$(reason)"
}

# Major versions of the driver by the release notes of the CUDA toolkit: the same for all of 13.x.
driver() {
    local text="" version="" release=unknown needed=""
    [ ! -r "$here/cuda_release" ] || release=$(<"$here/cuda_release")
    case $release in 13.*) needed=580 ;; 12.*) needed=525 ;; 11.*) needed=450 ;; esac
    [ ! -r /proc/driver/nvidia/version ] || text=$(</proc/driver/nvidia/version)
    [[ $text =~ Module[^.]*\ ([0-9]+\.[0-9.]+) ]] && version=${BASH_REMATCH[1]} || version=$(
        timeout 10 nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null)
    if [ -n "$emulator" ]; then
        echo "No GPU is used: DEVICE=simt is the emulator, whose speed means nothing."
    elif [ -z "$version" ]; then
        echo "There is no NVIDIA driver (no /proc/driver/nvidia/version, no nvidia-smi), so no GPU."
    elif [ "${version%%.*}" -ge "${needed:-0}" ]; then
        echo "The driver is $version; CUDA $release needs ${needed:-an unknown version}: it fits."
    else
        echo "The driver is $version, CUDA $release needs $needed: NOTHING HERE CAN USE THE GPU." \
            "kernels/cuda/README.md says what to do about an older driver."
    fi
}
{
    driver
    timeout 10 nvidia-smi --query-gpu=name,compute_cap,memory.total --format=csv 2>/dev/null
    timeout 10 "$TRAINER" --version
    printf '\n| part | check | verdict | figures | s |\n| --- | --- | --- | --- | --- |\n'
} 2>&1 | tee "$report"
# cuBLAS is opened at run time: from the system, from the toolkit, or from a Python package.
cublas=
for at in /usr/local/cuda*/lib64 $(timeout 10 "$PYTHON" -c \
    'import sys; print(*(p + "/nvidia/*/lib" for p in sys.path if p))' 2>/dev/null); do
    ! compgen -G "$at/libcublas.so.1[23]" >/dev/null || cublas=$at${LD_LIBRARY_PATH:+:}
done
library_path=$LD_LIBRARY_PATH row_begin=$SECONDS part_end=0
for part; do
    part_end=$((part_end + share[$part] * TOTAL / 540))  # a part may use what those before left
    export LD_LIBRARY_PATH=$library_path
    [ "$part" = e ] || LD_LIBRARY_PATH=$cublas$library_path  # PyTorch brings its own libraries
    part_$part
done
echo "
$passed passed or measured, $failed failed, $absent absent, in $SECONDS s" | tee -a "$report"
echo "{\"passed\":$passed,\"failed\":$failed,\"absent\":$absent,\"seconds\":$SECONDS}" >>"$results"
[ $failed -eq 0 ]
