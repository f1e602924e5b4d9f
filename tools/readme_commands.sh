#!/usr/bin/env bash
# Runs the commands of README.md that stand in ```sh blocks, each block in one shell at the
# repository's root, in order. Blocks that need more machines are marked ```text there and not run.
