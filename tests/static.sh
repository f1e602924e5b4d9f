#!/bin/bash
# ./trainer-static has no dynamic dependency and no path of the build in it, and in an empty chroot it
# reads every image format, resolves names, and trains to the losses of ./trainer.
set -eu
cd "$(dirname "$0")/.."
. tests/shell_support
need file:file dnsmasq:dnsmasq-base
/usr/bin/python3 -c 'import PIL' 2>/dev/null || need "import PIL:python3-pil"

# tools/static_libs takes an older version of a source package if the mirror lacks the newest version.
libs=$(mktemp -d)
trap 'rm -rf "$libs"' EXIT
printf '#!/bin/sh\ncase "$*" in *madison*) echo "x | 1-9 | m"; echo "x | 1-10 | m";; *=1-10*|*" ${LACKS:-none}="*) exit 1;; *=*) echo "$*" >>%s/log;; esac\n' \
    "$libs" >"$libs/apt-get"
chmod +x "$libs/apt-get"
ln -s apt-get "$libs/apt-cache"
ln -s /bin/false "$libs/cmake"
! PATH=$libs:$PATH tools/static_libs "$libs/build" x86_64 >"$libs/out" || fail "it builds without cmake" "$libs/out"
for package in opencv fmtlib tiff openssl curl; do holds "source $package=1-9$" "$libs/log" "the older $package"; done
# Without a complete version it takes the original.
tar -czf "$libs/build/opencv_1.orig.tar.gz" tests/static.sh
! LACKS=opencv PATH=$libs:$PATH tools/static_libs "$libs/build" x86_64 >"$libs/out" || fail "it builds without cmake" "$libs/out"
holds "opencv_1.orig.tar.gz" "$libs/out" "the original"
[ -e "$libs/build/opencv-original/static.sh" ] || fail "the original is not unpacked" "$libs/out"
! LACKS=curl PATH=$libs:$PATH tools/static_libs "$libs/none" x86_64 >"$libs/out" 2>&1 || fail "it builds without curl" "$libs/out"
holds "curl" "$libs/out" "what is missing"
rm -rf "$libs"

make -s trainer static
bytes=$(stat -c %s trainer-static)
[ "$bytes" -le 12000000 ] || fail "$bytes bytes, more than 12 MB"
file trainer-static | grep -q 'static-pie linked.*stripped' || fail "it is not static and stripped"
# Its addresses are random, what the linker resolved is read-only, and no stack is executable.
flags=$(readelf -hldW trainer-static)
for flag in 'Type: *DYN' 'GNU_RELRO' 'FLAGS.* NOW .*PIE' 'GNU_STACK .* RW  '; do
    grep -qE "$flag" <<<"$flags" || fail "readelf shows no $flag"
done
! grep -q "$PWD" trainer-static || fail "it holds the path of the build"

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/data" "$root/etc" "$root/proc"
cp trainer-static "$root/trainer"
/usr/bin/python3 - "$root/data" <<'PY'
import os, random, sys
from PIL import Image
random.seed(1)
formats = ["jpg", "png", "webp", "tiff", "bmp", "ppm"]
for label, base in enumerate([(200, 60, 60), (60, 60, 200)]):
    os.makedirs(f"{sys.argv[1]}/class{label}")
    for i in range(24):
        image = Image.new("RGB", (40, 30), tuple(c + random.randint(-40, 40) for c in base))
        for _ in range(60):
            image.putpixel((random.randrange(40), random.randrange(30)), (random.randrange(256),) * 3)
        image.save(f"{sys.argv[1]}/class{label}/{i}.{formats[i % len(formats)]}")
PY
options="--size 32 --batch 8 --epochs 2 --val-split 0.25 --threads 1 --decode-threads 1 --log-every 1"
# shellcheck disable=SC2086  # a list of words on purpose
./trainer $options --data "$root/data" --out "$root/dynamic" --quiet
# shellcheck disable=SC2086
chroot "$root" /trainer $options --data /data --out /static --quiet
losses() { grep -o '"loss":[^,}]*' "$1/log.jsonl"; }
[ "$(losses "$root/static" | wc -l)" -gt 8 ] || fail "it logged no losses"
[ "$(losses "$root/static")" = "$(losses "$root/dynamic")" ] || fail "its losses are not ./trainer's"
chroot "$root" /trainer check --data /data | grep -q '48 ' || fail "it does not read all 48 images"

export CONVOY_TOKEN
CONVOY_TOKEN=$(chroot "$root" /trainer token)
# Two ranks, with TLS, that find each other by a name from /etc/hosts, and by one from a name server.
echo '127.0.0.1 in-hosts' >"$root/etc/hosts"
echo 'nameserver 127.0.0.1' >"$root/etc/resolv.conf"
unshare --net --pid --fork --kill-child bash -euc '
    ip link set lo up
    dnsmasq --no-resolv --no-hosts --no-daemon --user=root --address=/in-dns.test/127.0.0.1 2>/dev/null &
    for name in in-hosts in-dns.test; do
        for rank in 1 0; do
            chroot "$0" /trainer --coord "$name:29400" --rank $rank $([ $rank = 1 ] || echo --world 2) \
                --generated 24 --size 16 --batch 8 --epochs 1 --threads 1 --join-timeout 20 --quiet \
                --out "/$name" & ranks[$rank]=$!
        done
        wait "${ranks[0]}" && wait "${ranks[1]}"
    done' "$root" || fail "it resolves no names"
echo "static: $bytes bytes; reads JPEG, PNG, WebP, TIFF, BMP, PPM and resolves names in an empty chroot"
