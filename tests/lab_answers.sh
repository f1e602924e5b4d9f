#!/usr/bin/env bash
# Runs every command of tests/lab/exercises/README.md as it stands there, and checks the numbers that the exercises and
# their answers name. Builds mini.cpp ten times, so it takes minutes.
# usage: tests/lab_answers.sh [NUMBER…]     only these exercises
set -u
cd "$(dirname "$0")/.." || exit
. tests/shell_support
set_up
need patch:patch shellcheck:shellcheck
shellcheck -x -S warning tests/lab_answers.sh tests/lab/exercises/functions || fail "shellcheck finds mistakes"
ln -s "$PWD"/{src,tests,trainer,net} "$work"
cd "$work" || exit
export port=$((20000 + $$ % 8000)) # below those that the system gives to clients
# shellcheck source=tests/lab/exercises/functions
. tests/lab/exercises/functions

out=$work/out ran=0 only=" $* "
exercise() { # number: runs its commands; false if it is not one of those that are asked for
    [ "$only" = "  " ] || [[ $only == *" $1 "* ]] || return
    awk -v n="**$1." '/^(\*\*|##)/ { mine = $1 == n } mine && /^    /' tests/lab/exercises/README.md >commands
    [ -s commands ] || fail "exercise $1 has no commands"
    # shellcheck source=/dev/null
    . ./commands >"$out" 2>&1
    ran=$((ran + 1))
}
check() { "${@:2}" || fail "$1" "$out"; }                       # sentence command…
lacks() { ! grep -qE -- "$1" "$2" || fail "$3: a line with '$1'" "$2"; } # pattern file what it is
weights() { sed -n 's/.*weights //p' "$1"; }
same() { # FILE FILE [LINES [DIFFERENCE]]: the losses in the first lines of these files agree
    paste -d' ' <(losses "$1") <(losses "$2") | head -n "${3:-20}" |
        awk -v most="${4:-0}" '{ d = $2 - $4; if (NF != 4 || $1 != $3 || d > most || -d > most) exit bad = 1 } END { exit bad || !NR }'
}
differ() { ! same "$@"; }

if exercise 1; then
    lacks 'exit status' "$out" "a rank failed"
    check "20 steps alone" [ "$(losses lab/one | wc -l)" -eq 20 ]
    holds '^rank 1 .*photos 3 .*sent 542680 ' "$out" "two ranks"
    check "bytes of three ranks" [ "$(grep -cE 'sent 723576 ' lab/1)" -eq 20 ]
    check "hashes" [ "$(cat lab/[012] | weights /dev/stdin | sort -u | wc -l)" -eq 20 ]
    holds 'early [1-7] ' lab/two "overlap"
    check "batch norm" differ lab/one lab/two 1
fi
if exercise 2; then
    lacks 'exit status' "$out" "a rank failed"
    check "three hashes" [ "$(weights "$out" | sort -u | wc -l)" -eq 6 ]
fi
if exercise 3; then
    check "no overlap" [ "$(grep -c 'early 0 ' "$out")" -ge 4 ]
    lacks 'step 1  photos 8 ' lab/0 "sums in another order"
fi
if exercise 4; then
    check "the losses of one" same lab/one lab/0
    holds 'photos 16 ' lab/1 "twice the photos"
fi
if exercise 5; then
    check "equal shares" same lab/two lab/0 5
    check "unequal shares" differ lab/two lab/0 6
fi
if exercise 6; then
    holds 'rank [01]: exit status 124' "$out" "timeout"
    lacks ' loss ' "$out" "a step"
fi
if exercise 7; then
    check "only rank 1 fails" [ "$(grep 'exit status' "$out")" = "rank 1: exit status 1" ]
    holds '^rank 1  step 3  photos 13 ' lab/1 "bytes of another step"
fi
if exercise 8; then check "one model" same lab/alone lab/0 20 0.0001; fi
if exercise 9; then check "the crops after a resume" differ lab/whole lab/0; fi
if exercise 10; then
    losses lab/whole | tail -n 10 | sed 's/^/ step /; s/ \([^ ]*\)$/ loss \1/' >lab/half
    check "AdamW goes on" same lab/half lab/0
    check "10 steps" [ "$(losses lab/0 | wc -l)" -eq 10 ]
fi
if exercise 11; then
    check "only rank 1 ends" [ "$(grep 'exit status' "$out")" = "rank 1: exit status 9" ]
    check "steps" [ "$(losses lab/survivor | cut -d' ' -f1 | tr '\n' ' ')" = "1 2 3 4 5 6 7 $(seq -s' ' 6 20) " ]
    losses lab/survivor | tail -n 15 | sed 's/^/ step /; s/ \([^ ]*\)$/ loss \1/' >lab/half
    check "the survivor goes on" same lab/half lab/0
fi
ended() { check "exit statuses of $1" [ "$(sed -n 's/.*: exit status //p' "$out" | tail -n 3 | tr '\n' ' ')" = "$2 " ]; }
if exercise 12; then
    ended killed "0 137 0"
    holds 'rank 1 .*2 ranks, step' "$out" "the ring without rank 1"
    holds '^30$' "$out" "all steps"
fi
if exercise 13; then
    ended "rank 0 killed" "137 0 0"
    holds '^30$' "$out" "all steps"
fi
if exercise 14; then
    check "the stopped rank ends" [ "$(sed -n 's/.*: exit status //p' "$out" | head -n 3 | tr '\n' ' ')" = "0 1 0 " ]
    ended "those that waited" "0 0 0"
    check "health" [ "$(grep -c '^error: ' "$out")" -eq 1 ]
    holds "^error: .*:$((port + 2)) " "$out" "health of rank 1"
fi
if exercise 15; then
    ended joined "0 0 0"
    holds 'rank 3 .*4 ranks' "$out" "the ring with a new rank"
    holds '^30$' "$out" "all steps"
fi
[ "$only" != "  " ] || [ $ran -eq "$(grep -cE '^\*\*[0-9]+\.' tests/lab/exercises/README.md)" ] || fail "an exercise is not checked"
echo "lab_answers: ok, $ran exercises, ${SECONDS} s"
