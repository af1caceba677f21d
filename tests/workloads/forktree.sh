#!/bin/bash
# Processes as a shell makes them: background jobs, subshells, pipes and exec chains. Prints the programs' lines.
#   forktree.sh [BIN_DIR]
# 8 programs run, in 19 processes; 920 blocks are allocated and freed, 10 of them straight from the driver.
set -eu
bin=${1:-$(dirname "$0")}

# two background jobs at a time
"$bin/pairs" --pairs 100 &
"$bin/pairs" --pairs 200 --threads 2 &
wait

# a subshell in a subshell
( ( "$bin/pairs" --pairs 50; ) )

# an exec chain: every link keeps the pid; the second and the third allocate
bash -c 'exec bash -c "exec \"\$0/forktree\" --children 0 --depth 0 --exec \"\$0/devices\"" "$0"' "$bin"

# a pipe, both ends allocate
"$bin/pairs" --pairs 10 --hal | { cat; exec "$bin/pairs" --pairs 20; }

# forks without exec: 1 + 3 + 9 processes
"$bin/forktree" --children 3 --depth 2
