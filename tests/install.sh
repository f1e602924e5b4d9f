#!/bin/bash
# make install and make deb: the files, a manual page without errors that has every option, a package
# that is reproducible, without errors of lintian, and that installs, runs and leaves nothing when it
# is removed.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/shell_support
need help2man:help2man man:man-db groff:groff mandoc:mandoc lintian:lintian shellcheck:shellcheck readelf:binutils \
    dpkg-shlibdeps:dpkg-dev
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(sed -n 's/.*kVersion = "\(.*\)".*/\1/p' src/cli/version.cpp)
[ "$(sed -n 's/^## //p' CHANGELOG.md | head -1)" = "$version" ] ||
    fail "the first version of CHANGELOG.md is not $version of src/cli/version.cpp"

# make install and uninstall
(umask 077 && make -s install PREFIX=/opt DESTDIR="$work/tree")
files=$(cd "$work/tree" && find . -type f -perm -o=r | sort)
[ "$files" = "./opt/bin/trainer
./opt/share/doc/convoy/CHANGELOG.md
./opt/share/doc/convoy/README.md
./opt/share/doc/convoy/copyright
./opt/share/man/man1/trainer.1.gz" ] || fail "make install made: $files"
trainer=$work/tree/opt/bin/trainer
"$trainer" --version | grep -qx "Convoy $version" || fail "the installed trainer is not $version"

# The manual page: what every command's --help has, and no line that roff misreads.
page=$work/trainer.1
zcat "$work/tree/opt/share/man/man1/trainer.1.gz" >"$page"
warnings=$(man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null)
[ -z "$warnings" ] || fail "man: $warnings"
mandoc -Tlint -W error "$page" || fail "mandoc finds errors in the manual page"
grep -q "^.TH TRAINER \"1\" \"$(LC_ALL=C date -u -d "@$(git log -1 --format=%ct)" '+%B %Y')\" \"Convoy $version\"" "$page" ||
    fail "the manual page has another date or version: $(head -1 "$page")"
man -E UTF-8 -l -Tutf8 "$page" | col -b >"$work/page.txt"

# Every command and option is on it.
commands=$("$trainer" --help-all | sed -n '/^Commands/,/^$/s/^  \([a-z]*\( [a-z-]\+\)\?\) .*/\1/p')
[ "$(wc -l <<<"$commands")" -ge 15 ] || fail "--help names too few commands: $commands"
while read -ra command; do  # "bench train" is two words
    grep -q "^ *${command[*]}\b" "$work/page.txt" || fail "the manual page lacks ${command[*]}"
    options=$("$trainer" "${command[@]}" --help-all |
        sed -nE 's/^  (-h,)?(--[a-z0-9-]+).*/\2/p' | sort)  # `token` has none
    for option in $options; do
        grep -qE "^ *$option\b" "$work/page.txt" || fail "the manual page lacks $option of ${command[*]}"
    done
done <<<"$commands"

make -s uninstall PREFIX=/opt DESTDIR="$work/tree"
left=$(find "$work/tree" -type f)
[ -z "$left" ] || fail "make uninstall leaves $left"

# check_package PROGRAM ARGUMENT...: what `make deb ARGUMENT...` makes, with ./PROGRAM in it.
check_package() {
    local deb errors program=$1 root=$work/root-$1 listing
    shift
    make -s deb "$@" >/dev/null
    deb=$(echo "build/convoy_$version-1_"*.deb)
    # The package is not made for Debian's archive, where a first upload closes a bug report.
    errors=$(lintian --allow-root --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs \
        "$deb" 2>&1) || fail "lintian: $errors"
    listing=$(dpkg-deb -c "$deb")
    for file in bin/trainer share/man/man1/trainer.1.gz \
        share/doc/convoy/{README.md,copyright,changelog.gz,changelog.Debian.gz}; do
        grep -qE "^-rw[x-]r-[x-]r-[x-] root/root .* \./usr/$file\$" <<<"$listing" || fail "$deb lacks $file"
    done
    apt-get -qq --simulate install "./$deb" >/dev/null || fail "$deb cannot be installed by apt here"
    mkdir -p "$root/var/lib/dpkg/"{info,updates} && touch "$root/var/lib/dpkg/"{status,available}
    dpkg --root="$root" --force-depends -i "$deb" >/dev/null 2>&1 || fail "dpkg -i $deb fails"
    (cd "$root" && md5sum --quiet -c var/lib/dpkg/info/convoy.md5sums) || fail "$deb is damaged"
    "$root/usr/bin/trainer" --version | grep -qx "Convoy $version" || fail "the trainer of $deb does not run"
    [ "$program" = trainer ] || chroot "$root" /usr/bin/trainer --version >/dev/null ||
        fail "the trainer of $deb does not run where there is nothing else"
    dpkg --root="$root" -r convoy >/dev/null
    [ ! -e "$root/usr" ] || fail "dpkg -r convoy leaves $(find "$root/usr" -type f)"
    echo "install: $deb with ./$program, $(stat -c %s "$deb") bytes, depends on:" \
        "$(dpkg-deb -f "$deb" Depends | tr '\n' ' ')"
}
check_package trainer PROGRAM=trainer
dpkg-deb -f "build/convoy_$version-1_"*.deb Depends | grep -q libopencv-core || fail "./trainer needs OpenCV"
check_package trainer-static
deb=$(echo "build/convoy_$version-1_"*.deb)
needs=$(dpkg-deb -f "$deb" Depends)
[ -z "$needs" ] || fail "the package with ./trainer-static depends on $needs"
cp "$deb" "$work/first.deb"
(umask 077 && TZ=Asia/Tokyo make -s deb >/dev/null)
cmp "$deb" "$work/first.deb" || fail "two packages of the same commit differ"

# make wheel: the same bytes again; pip takes it for glibc and for musl, and its program needs no file of the system.
need zip:zip
/usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null || need "ensurepip venv:python3-venv"
wheel=$(make -s wheel | tail -n 1)
cp "$wheel" "$work/first.whl"
make -s wheel >/dev/null
cmp "$wheel" "$work/first.whl" || fail "two wheels of the same commit differ"
/usr/bin/python3 -m venv "$work/venv"
for platform in musllinux_1_1 manylinux_2_17; do
    "$work/venv/bin/pip" install -q --platform "${platform}_$(uname -m)" --only-binary=:all: --target "$work/$platform" "$wheel" ||
        fail "pip does not take the wheel for $platform"
done
"$work/venv/bin/pip" install -q "$wheel" && "$work/venv/bin/pip" check -q
mkdir -p "$work/empty/tmp" && cp "$work/venv/bin/trainer" "$work/empty/"
chroot "$work/empty" /trainer --version | grep -qx "Convoy $version" || fail "the trainer of the wheel does not run"
"$work/venv/bin/pip" uninstall -qy convoy-trainer
[ ! -e "$work/venv/bin/trainer" ] || fail "pip uninstall leaves the trainer"
