#!/usr/bin/env bash
# Runs the commands of README.md that stand in ```sh blocks, each block in one shell at the
# repository's root, in order; stops at the first that fails. Blocks that need more machines, or data
# of one's own, are marked ```text there and not run.
set -eu
cd "$(dirname "$0")/.."
commands=$(mktemp)
trap 'rm -f "$commands"' EXIT
awk '/^```sh$/ {inside = 1; next} /^```$/ {if (inside) print "#end"; inside = 0} inside' README.md >"$commands"
number=0 block=""
while IFS= read -r line <&3; do
    if [ "$line" != "#end" ]; then
        block+="$line"$'\n'
        continue
    fi
    number=$((number + 1))
    printf 'README block %d:\n%s' "$number" "$block"
    # Commands of make run one by one, so that the time of each is known.
    if [[ $block == make* ]]; then
        while IFS= read -r command; do
            begin=$SECONDS
            bash -euo pipefail -c "$command" </dev/null
            echo "README: $command took $((SECONDS - begin)) s"
        done <<<"${block%$'\n'}"
    else
        bash -euo pipefail -c "$block" </dev/null
    fi
    block=""
done 3<"$commands"
[ "$number" -gt 0 ] || { echo "README.md has no commands to run" >&2; exit 1; }
echo "README: $number blocks ran"
