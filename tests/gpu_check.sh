#!/bin/bash
# The GPU kit in the bare root of another distribution, on the emulator and with mocks of the device's
# tools: it starts there, both commands of tests/lab/gpu_check.sh run to the end, a part that fails is
# named with its deviation and does not stop the others, and limits of time and size hold.
set -eu
cd "$(dirname "$0")/.."
. tests/shell_support
# On a Hopper card `make` builds code with wgmma.
mkdir -p build/mocks && printf '#!/bin/sh\necho 9.0\n' >build/mocks/nvidia-smi
printf '#!/bin/sh\n' >build/mocks/nvcc && chmod +x build/mocks/*
PATH=$PWD/build/mocks:$PATH make -pn lines 2>/dev/null | grep -x 'ARCHS := 90a' >/dev/null || fail "9.0 does not become 90a"
# Each name in the filter of ncu is one of a kernel.
filter=$(sed -nE "s/.*'regex:([^']*)'.*/\1/p" tests/lab/gpu_check.sh)
for name in ${filter//|/ }; do
    grep -qE "$name[a-z_]*_kernel\(" kernels/cuda/*.cu* || fail "ncu would profile no kernel for '$name'"
done
work=$(mktemp -d "${TMPDIR:-/tmp}/convoy-$script-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
if command -v nvcc >/dev/null; then
    make -s gpu-kit
else
    echo "$script: there is no nvcc, so the kit has only the emulator"
    make -s CUDA=0 build/gpu-kit
fi

# The first stage of debootstrap is enough: bash and coreutils are unpacked, nothing is configured.
suite=trixie
. /etc/os-release
[ "${VERSION_CODENAME:-}" != trixie ] || suite=bookworm
root=build/bare/$suite
[ -e "$root/bin/bash" ] || { need debootstrap:debootstrap && rm -rf "$root" && mkdir -p "$root" &&
    debootstrap --foreign --variant=minbase "$suite" "$root" >"$work/debootstrap"; } || {
    echo "$script: NOT TRIED in another distribution, as debootstrap failed; in bash, coreutils and glibc of this one"
    root=$work/bare
    mkdir -p "$root"/{usr/bin,proc,dev,tmp}
    cp -L /bin/bash /usr/bin/env $(dpkg -L coreutils | grep -E '^(/usr)?/bin/') "$root/usr/bin"
    ln -s usr/bin "$root/bin"
    for library in $(ldd /bin/bash /bin/ls /bin/cp build/gpu-kit/kit | grep -oE '/[^ ]+' | grep -v : | sort -u); do
        mkdir -p "$root${library%/*}" && cp -L "$library" "$root$library"
    done
}
kit=$root/kit
rm -rf "$kit" && cp -r build/gpu-kit "$kit" && mkdir "$kit/mocks"
mock() { # NAME LINES
    printf '#!/bin/bash\n%s\n' "$2" >"$kit/mocks/$1" && chmod +x "$kit/mocks/$1"
}
# check NAME STATUS COMMAND [VARIABLE=VALUE...]: keeps its results in $work/NAME.
check() {
    local status=0
    rm -rf "$root/out" && mkdir "$root/out"
    unshare --mount --propagation private bash -euc 'mount -t proc proc "$0/proc"; mount --rbind /dev "$0/dev"
        exec chroot "$0" /usr/bin/env -i PATH=/usr/bin:/bin:/kit/mocks OUT=/out DEVICE=simt TESTS="pool mma" LIMIT=3000 \
            PEERS=/kit/peers.jsonl TMPDIR=/tmp "${@:2}" bash /kit/gpu_check.sh "$1"' \
        "$root" "${@:3}" >"$work/said" 2>&1 </dev/null || status=$?
    rm -rf "${work:?}/$1" && mv "$root/out" "$work/$1"
    [ $status -eq "$2" ] || fail "$1: exit status $status, not $2" "$work/said"
    [ "$(find "$work/$1" -type f | wc -l)" -le 8 ] || fail "$1: more than eight files"
    [ -z "$(find "$work/$1" -size +16384k)" ] || fail "$1: a file of more than 16 MiB"
    [ "$(tail -n "$(wc -l <"$work/$1/report.md")" "$work/said")" = "$(<"$work/$1/report.md")" ] ||
        fail "$1: the table is not printed last" "$work/said"
}
has() { # NAME TEXT: a line of the table
    grep -qE "^\| $2" "$work/$1/report.md" || fail "$1: no line '$2'" "$work/said"
}

# Without any tool of the device.
check bare 0 correct
has bare "smoke test \| passed"
has bare "device tests \| passed \| cases: [0-9]+, of 2 files"
has bare "losses fall together \| passed"
has bare "two ranks on one GPU \| (passed \| .*the GPUs sum|absent \| .*do not share memory)"
has bare "real sizes \| passed \| [1-9][0-9] ops"
has bare "train tiny:2:bf16 \| measured \| [0-9]+ img/s"
has bare "train tiny:2:fp32 \| measured"
has bare "train tiny:2:bf16 by TMA \| measured"
has bare "real sizes by TMA \| passed"
has bare "PyTorch \| absent"
check bare 0 speed
has bare "times of cuDNN \| absent"
has bare "multiply-adds in bf16 \| measured"
has bare "batch norm's gradient, backwards, bf16 \| measured"
has bare "tiny linear 1000 [^|]*backward \| measured \| 1 x [0-9.]+ ms"
has bare "ncu \| absent"
has bare "compute-sanitizer \| absent"

mock nvidia-smi 'echo "a mock of a GPU"'
mock python3 'case $2 in
    gpu) echo "{\"model\": \"tiny\", \"batch\": 2, \"precision\": \"bf16\", \"form\": \"compiled\", \"images_per_second\": 40.5}"
        echo "{\"name\": \"tiny linear 1000 1x1x1x128 forward\", \"milliseconds\": 0.25}" ;;
esac'
mock ncu 'while [ $# -gt 0 ] && [ "$1" != /kit/kit ]; do shift; done; head -c 4000000 /dev/zero | tr "\0" x
    exec "$@"'
mock compute-sanitizer 'echo "========= ERROR SUMMARY: 0 errors"'
check tools 0 correct
has tools "train tiny:2:bf16, PyTorch compiled \| measured \| (40|41) img/s"
check tools 0 speed
grep -q "a mock of a GPU" "$work/tools/report.md" || fail "tools: the report does not begin with the GPU"
has tools "tiny linear 1000 1x1x1x128 forward \| measured .*; cuDNN: 0.2500 ms, [0-9]+ %"
has tools "one step traced \| measured"
has tools "ncu: tiny \| measured"
has tools "memcheck \| passed \| ERROR SUMMARY: 0 errors"
[ -s "$work/tools/trace.json.gz" ] || fail "tools: no trace"
grep -q '^{"model":"tiny","op":"linear 1000",.*}$' "$work/tools/operations.jsonl" || fail "tools: no operations.jsonl"

# A kernel without its barrier, a program that crashes, one that hangs.
barrier=$(grep -n '__syncthreads()' kernels/cuda/moments.cuh | head -n 1)
check broken 1 correct SIMT_LEAVE_OUT=kernels/cuda/moments.cuh:"${barrier%%:*}" TESTS="moments pool"
has broken "test_moments \| FAILED \| .* off by more than [0-9.e-]+; worst at .*, in .*moments"
has broken "device tests \| passed \| cases: [0-9]+, of 1 files"
has broken "train tiny:2:bf16 \| FAILED"
mock crashes 'echo started; kill -SEGV $$'
check crashes 1 correct KIT=/kit/mocks/crashes
has crashes "smoke test \| FAILED \| ended by signal 11: started"
[ "$(grep -c '| FAILED |' "$work/crashes/report.md")" = 1 ] || fail "crashes: it went on after the smoke test"
check crashes 1 speed KIT=/kit/mocks/crashes
has crashes "multiply-adds in fp32 \| FAILED \| ended by signal 11: started"
has crashes "memcheck \| passed"
mock hangs 'exec sleep 1000'
begin=$SECONDS
check hangs 1 speed KIT=/kit/mocks/hangs LIMIT=12
[ $((SECONDS - begin)) -lt 60 ] || fail "hangs: took $((SECONDS - begin)) s"
has hangs "multiply-adds in fp32 \| FAILED \| stopped after [0-9]+ s"
has hangs "one step traced \| FAILED \| no time was left for it"
tests/lab/gpu_check.sh anything 2>/dev/null && fail "an unknown command is taken" || [ $? -eq 2 ] || fail "an unknown command: status $?"
echo "$script: passed in $SECONDS s; the kit has $(du -sm build/gpu-kit | cut -f1) MiB"
