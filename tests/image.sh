#!/bin/bash
# The image convoy:cpu, built and run by podman without a daemon: small; PID 1; any user; a read-only
# root; no /proc/sys; 1 MB of shared memory. Trains the generated set and real JPEG, PNG and WebP
# files, alone and as three containers that find each other by name; `health` is right about each; a
# stop saves and ends in time. About 12 s when ./trainer-static exists. Needs root.
# The targets cuda and dev need a base image from a registry, and are not built here.
set -eu
cd "$(dirname "$0")/.."
. tests/shell_support
if [ -z "${IMAGE_TEST_INSIDE:-}" ]; then
    [ "$(id -u)" -eq 0 ] || fail "needs root, to run containers"
    need podman:podman runc:runc /usr/lib/podman/netavark:netavark /usr/lib/podman/aardvark-dns:aardvark-dns \
        /usr/sbin/iptables:iptables /usr/sbin/update-ca-certificates:ca-certificates
    /usr/bin/python3 -c 'import PIL' 2>/dev/null || need "import PIL:python3-pil"
    [ -x trainer-static ] || make -s static
    # Networks, mounts and firewall rules of containers stay in namespaces of this test.
    IMAGE_TEST_INSIDE=1 exec unshare --net --mount --propagation private "$0"
fi

PATH=$PATH:/usr/sbin:/sbin # podman looks for iptables
work=$(mktemp -d)
chmod 755 "$work"
log=$work/log # of stderr: podman complains that there is no systemd to run health checks
exec 3>&2 2>>"$log"
pod() {
    timeout 60 podman --runtime runc --root "$work/store" --runroot "$work/run" \
        --storage-driver vfs --cgroup-manager cgroupfs --network-config-dir "$work/networks" "$@"
}
finish() {
    pod rm -fa -t 0 >/dev/null || true
    pod network rm -f convoy-test >/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
die() {
    {
        echo "image: FAILED: $*"
        for name in one two zero; do pod logs $name 2>&1 | tail -5 | sed "s/^/$name: /"; done
        grep -v systemd "$log" | tail -5
    } >&3
    exit 1
}
# run OPTION … convoy:cpu WORD …: as a careful administrator would.
run() {
    pod run --read-only --user 12345:0 --cap-drop all --security-opt no-new-privileges \
        --security-opt mask=/proc/sys --shm-size 1m --ulimit nofile=1024:1024 \
        --ulimit nproc=4096:4096 -e CONVOY_THREADS=1 -e CONVOY_SIZE=16 -e CONVOY_PREFLIGHT=off "$@"
}
logged() { pod logs "$1" | grep -q "$2"; }
# stop NAME STATUS: it ends in less than 10 s with that status.
stop() {
    local begin=$SECONDS status
    pod stop -t 30 "$1" >/dev/null
    [ $((SECONDS - begin)) -lt 10 ] || die "$1 took $((SECONDS - begin)) s to stop"
    status=$(pod wait "$1")
    [ "$status" = "$2" ] || die "$1 ended with status $status when it was stopped, not $2"
}
# says TEXT STATUS COMMAND …: the command's output has TEXT, and its exit status is STATUS.
says() {
    local text=$1 want=$2 status=0 output
    shift 2
    output=$("$@" 2>&1) || status=$?
    [ "$status" = "$want" ] && grep -q -- "$text" <<<"$output" ||
        { echo "'$*': status $status, not $want, or no '$text' in: $output" >&2 && return 1; }
}

# A docker client without a daemon, whose `info` fails, is not the builder.
mkdir "$work/bin"
for tool in docker podman; do ln -s /bin/false "$work/bin/$tool"; done
ln -s /bin/echo "$work/bin/buildah"
says "^build .*convoy:dev" 0 env PATH="$work/bin:$PATH" BUILDER= tools/deploy/image dev || die "the choice of the builder"

storage="--root $work/store --runroot $work/run --storage-driver vfs"
TRAINER=./trainer-static BUILDER="podman $storage build --isolation chroot --format docker" \
    tools/deploy/image cpu >&2 || die "tools/deploy/image cpu"
size=$(pod image inspect convoy:cpu --format '{{.Size}}')
[ "$size" -le 15000000 ] || die "the image has $size bytes; 15 MB are allowed"
echo "image: $size bytes"
config=$(pod image inspect convoy:cpu --format '{{.User}} {{.Config.WorkingDir}}
    {{.Config.Entrypoint}} {{json .Config.Volumes}} {{json .HealthCheck.Test}}' | tr -s ' \n' ' ')
[ "$config" = '65532:65532 / [/trainer] {"/data":{},"/runs":{}} ["CMD","/trainer","health"] ' ] ||
    die "the image's configuration is $config"

# Its own user, and a volume that the image provides.
says "done: 1 steps" 0 run --rm --user 65532:65532 --network none convoy:cpu --generated 48 \
    --epochs 1 || die "training into the image's volume"
# Another user, and a mounted folder that belongs to that user.
install -d -o 12345 "$work/runs"
says "done: 1 steps" 0 run --rm --network none -v "$work/runs:/runs" convoy:cpu --generated 48 \
    --epochs 1 || die "training into a mounted folder"
[ -e "$(echo "$work"/runs/*/latest/meta.json)" ] || die "no checkpoint in the mounted /runs"
echo "image: trained as users 65532 and 12345, with a read-only root"

/usr/bin/python3 - "$work/data" <<'PYTHON' || die "making the images"
import os, sys
from PIL import Image
for c, name in enumerate(["red", "green"]):
    os.makedirs(f"{sys.argv[1]}/{name}")
    for i in range(12):
        color = [40 + 10 * i] * 3
        color[c] = 250
        kind = ["jpg", "png", "webp"][i % 3]
        Image.new("RGB", (40 + i, 30), tuple(color)).save(f"{sys.argv[1]}/{name}/{i}.{kind}")
PYTHON
says "24 images" 0 run --rm --network none -v "$work/data:/data:ro" convoy:cpu check /data ||
    die "check /data"

# Three containers, from a rank that starts before the coordinator to a stop of one of them.
token=$(run --rm convoy:cpu token) || die "no token"
pod network create convoy-test >/dev/null || die "podman cannot create a network"
rank() { # NAME OPTION …
    local name=$1
    shift
    run -d --name "$name" --network convoy-test -v "$work/data:/data:ro" -v "$work/runs:/runs" \
        -e CONVOY_COORD=zero:29400 -e CONVOY_TOKEN="$token" "$@" >/dev/null || die "$name did not start"
}
rank one -e CONVOY_RANK=1 convoy:cpu --data /data
within 10 logged one "waiting for the coordinator" || die "rank 1 does not wait for rank 0"
says "nobody listens at port 29400" 1 pod exec one /trainer health ||
    die "health before rank 0 is there"
rank zero -e CONVOY_RANK=0 -e CONVOY_WORLD=3 convoy:cpu --data /data --epochs 100000 --batch 8 \
    --out /runs/job --save-every 1000
within 20 says "joining: 2 of 3 joined, missing rank 2" 0 pod exec one /trainer health ||
    die "health while a rank is missing"
pod healthcheck run zero >/dev/null || die "the image's health check of a rank that waits"
rank two -e CONVOY_RANK=2 convoy:cpu --data /data
within 20 logged zero "epoch 2/" || die "three containers did not train"
says "rank 2 of 3, step " 0 pod exec two /trainer health || die "health of a rank that trains"
pod healthcheck run zero >/dev/null || die "the image's health check of a rank that trains"
says "nobody listens at port 29401" 1 pod exec two /trainer health --port 29401 ||
    die "health where there is no rank"
stop two 0
within 10 logged zero " left; 2 ranks go on from step " || die "the others do not go on"
for name in zero one; do pod stop -t 30 $name >/dev/null & done
for name in zero one; do
    [ "$(pod wait $name)" = 143 ] || die "$name did not end with a checkpoint"
done
[ -e "$work/runs/job/latest/meta.json" ] || die "the stopped job left no checkpoint"
says "of 24 images" 0 run --rm --network none -v "$work/data:/data:ro" \
    -v "$work/runs:/runs:ro" convoy:cpu eval --from /runs/job --data /data || die "eval of the job"
pod rm -fa >/dev/null
echo "image: three containers found each other by name, trained, and stopped with a checkpoint"

# As PID 1, commands that never ask for a signal end on one as well.
run -d --name two --network none convoy:cpu bench kernels >/dev/null
stop two 143
echo "image: ok"
