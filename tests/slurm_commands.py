"""Stand-ins for commands of Slurm, as text of shell scripts; a test puts them on its PATH."""

SRUN = """#!/bin/bash
# Starts a program with, in its environment, the cores that it gets: one where srun is not told how many.
cores=1
while [[ $1 == -* ]]; do
  [[ $1 == --cpus-per-task=* ]] && cores=${1#*=}
  shift
done
CORES=$cores exec "$@"
"""
SCONTROL = """#!/bin/bash
echo "scontrol $*"
"""
