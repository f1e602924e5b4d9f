#!/bin/bash
# The sources compile without a warning by the compiler and with the libraries of the other Debian release: 13 (g++ 14),
# or 12 (g++ 12) on Debian 13. The trainer is compiled as `make` does; of tests and emulator only the syntax is
# checked, which takes a third of the time. Packages are unpacked into build/compiler, not installed. Also what
# `make` says where there is no compiler yet, and the advice of `make lines`.
set -eu
cd "$(dirname "$0")/.."
. tests/shell_support
work=$(mktemp -d "${TMPDIR:-/tmp}/convoy-$script-XXXXXX")
trap 'rm -rf "$work"' EXIT

# On a fresh machine make runs before there are g++ and binutils.
mkdir "$work/bin"
for tool in make sh uname nproc cut sed grep git awk sort wc xargs; do ln -s "$(command -v $tool)" "$work/bin/"; done
PATH=$work/bin make lines >"$work/said" 2>&1 || fail "make lines fails" "$work/said"
! grep -E "not found|No such file" "$work/said" || fail "make complains without a compiler"

# `make lines` takes a small excess over the ceiling, and says what to do.
lines=$(sed -nE 's/^ *([0-9]+)  of .*/\1/p' "$work/said")
make -s lines BUDGET=$((lines - 200)) >"$work/said" || fail "make lines takes no 200 lines of a change" "$work/said"
[ "$(grep -c '/.*\.[a-z]*$' "$work/said")" -ge 5 ] || fail "make lines names no large files" "$work/said"
! make -s lines BUDGET=$((lines - 201)) >"$work/said" 2>&1 || fail "make lines takes 201 lines more" "$work/said"
holds 'up to 200 lines' "$work/said" "the advice"

. /etc/os-release
case ${VERSION_CODENAME:-} in bookworm) suite=trixie ;; trixie) suite=bookworm ;; *) suite="" ;; esac
root=$PWD/build/compiler apt=(apt-get -qq -o APT::Sandbox::User=root -o Acquire::Languages=none)
for option in Dir::State::status=status Dir::State::lists=lists Dir::Etc::sourceparts=sources Dir::Cache=cache; do
    apt+=(-o "${option%=*}=$root/${option#*=}")
done
# fetch: unpacks g++ with all that it needs to run, and the headers of the libraries.
fetch() {
    local list
    mkdir -p "$root"/{lists,cache/archives,sources,debs,tmp} && : >"$root/status"
    for list in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
        ! grep -qsE "(^| )$VERSION_CODENAME( |$)" "$list" ||
            sed -E "s/\b$VERSION_CODENAME\b/$suite/g" "$list" >"$root/sources/$(basename "$list")"
    done
    "${apt[@]}" -o Dir::Etc::sourcelist=/dev/null update || return
    apt+=(-o Dir::Etc::sourcelist=/dev/null --no-install-recommends)
    packages() { "${apt[@]}" --print-uris install "$@" | awk '{ sub(/_.*/, "", $2); print $2 }'; }
    # shellcheck disable=SC2046  # lists of words on purpose
    (cd "$root/debs" && "${apt[@]}" download $(packages g++) \
        $(packages $(PATH=/none /bin/sh "$OLDPWD/tools/deps.sh" | tail -n +2) | grep -e '-dev$')) || return
    for list in "$root"/debs/*.deb; do dpkg-deb -x "$list" "$root" || return; done
    for list in lib lib64; do [ -e "$root/$list" ] || ln -s "usr/$list" "$root"; done
    rm -rf "$root/debs"
    [ -x "$root/usr/bin/g++" ] && [ -d "$root/usr/include/CLI" ] && touch "$root/complete"
}
if [ "$(id -u)" -ne 0 ] || [ -z "$suite" ] || ! command -v dpkg-deb >/dev/null || ! { [ -e "$root/complete" ] || fetch; }; then
    echo "$script: NOT TRIED with another compiler, as this is not root on Debian 12 or 13, or packages cannot be had"
    exit 0
fi
cat >"$work/g++" <<EOF
#!/bin/sh
case "\$*" in *tests/* | *simt/* | *tools/*) set -- "\$@" -fsyntax-only ;; esac
exec unshare --root='$root' --wd=/convoy g++ "\$@"
EOF
chmod +x "$work/g++"
mkdir -p "$root/convoy"
find "$root/convoy" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +  # also files that are no more
git ls-files -z | tar --null -T - -c | tar -x -C "$root/convoy"
make -s -C "$root/convoy" CXX="$work/g++" CUDA=0 WERROR=1 -k objects >"$work/said" 2>&1 ||
    fail "a warning or an error of $("$work/g++" --version | head -n 1)" "$work/said"
echo "$script: no warning of $("$work/g++" --version | head -n 1), after $SECONDS s"
