#!/bin/bash
# Slurm: two nodes of 8 GPUs, one process a node. Submit it once; it queues itself again until the run is done.
#
#   sbatch --export=ALL,RUN=/shared/runs/pi0,DATA=/shared/my_dataset examples/cluster/slurm.sh
#
# Two minutes ahead of the time limit, and when Slurm takes the nodes for another job, every process gets SIGTERM: the
# run saves, ends with 75, and is queued again. So it is when a process dies and the others end with 76, or with 134
# where jax notices first: 137 and 139 are of a process that was killed, 253 is Slurm's of one that was out of memory.
# An error of one process alone shows as the 76 or 134 of the others, and is tried MAX_RESTARTS times.
#SBATCH --job-name=chunkwise
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --mem=0
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=chunkwise-%j.log
set -u

PYTHON="${PYTHON:-.venv/bin/python}"
RUN="${RUN:?set RUN to a folder that all nodes see, such as /shared/runs/pi0}"
DATA="${DATA:?set DATA to the dataset, in a folder that all nodes see}"
MAX_RESTARTS="${MAX_RESTARTS:-100}"

# srun runs the program itself, without a shell between them: the signal reaches it, and its exit code comes back, of
# several the highest. So none may be killed because another ended first: they end by themselves, within seconds.
# Since Slurm 22.05 srun no longer takes --cpus-per-task from sbatch: unsaid, each process would have one core.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=0 "$PYTHON" launch.py --config configs/openpi_ript/pi0_full.py \
  --run.dir "$RUN" --run.resume --run.compile-cache "$RUN.programs" \
  --data.path "$DATA" --mesh.fsdp 8 --checkpoint.every 500
code=$?

case $code in
  75 | 76 | 134 | 137 | 139 | 253)
    if [ "${SLURM_RESTART_COUNT:-0}" -lt "$MAX_RESTARTS" ]; then
      echo "ended with $code: queued again"
      exec scontrol requeue "$SLURM_JOB_ID"
    fi
    echo "ended with $code after ${SLURM_RESTART_COUNT:-0} restarts: not queued again"
    ;;
esac
exit $code
