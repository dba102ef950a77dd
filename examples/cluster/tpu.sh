#!/bin/bash
# Cloud TPU with gcloud: makes a v5p-64 (32 chips, 8 hosts), trains on it, and makes it anew when it is taken away.
#
#   RUN=/shared/runs/pi0 DATA=/shared/my_dataset ZONE=us-east5-a REPOSITORY=<url> examples/cluster/tpu.sh
#
# SETUP must mount /shared on every host (Filestore or Lustre); the default expects it mounted by the image.
set -euo pipefail

NAME="${NAME:-chunkwise}"
ZONE="${ZONE:?set ZONE, such as us-east5-a}"
TYPE="${TYPE:-v5p-64}"
IMAGE="${IMAGE:-v2-alpha-tpuv5}"
REPOSITORY="${REPOSITORY:?set REPOSITORY to where the hosts clone this repository from}"
RUN="${RUN:?set RUN to a folder that all hosts see, such as /shared/runs/pi0}"
DATA="${DATA:?set DATA to the dataset, in a folder that all hosts see}"
SETUP="${SETUP:-mountpoint -q /shared}"
MAX_RESTARTS="${MAX_RESTARTS:-100}"
PAUSE="${PAUSE:-60}"                # seconds before a call that failed is made again
TRIES="${TRIES:-10}"                # of such a call, and of setting up a machine
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT

on() {
  gcloud compute tpus tpu-vm ssh "$NAME" --zone "$ZONE" --worker="$1" --command "$2"
}

described() {
  gcloud compute tpus tpu-vm describe "$NAME" --zone "$ZONE" --format="value($1)" 2>"$errors"
}

# Prints READY, another state, or NONE without such a machine. A call that fails says nothing of the machine, and a
# healthy one must not be deleted for it.
state() {
  local try
  for ((try = 0; try < TRIES; try++)); do
    if described state; then return; fi
    if grep -q NOT_FOUND "$errors"; then echo NONE && return; fi
    cat "$errors" >&2
    sleep "$PAUSE"
  done
  return 1
}

# A spot machine that was taken away stays behind as a name in use.
make_anew() {
  gcloud compute tpus tpu-vm delete "$NAME" --zone "$ZONE" --quiet || true
  until gcloud compute tpus tpu-vm create "$NAME" --zone "$ZONE" --accelerator-type "$TYPE" --version "$IMAGE" --spot; do
    sleep "$PAUSE"
  done
}

# Ahead of each start: a machine may have been taken, or a connection have broken, in the middle of it.
set_up() {
  on all "$SETUP && { test -e chunkwise/.ready || { { test -d chunkwise || { rm -rf chunkwise.part \
    && git clone $(printf %q "$REPOSITORY") chunkwise.part && mv chunkwise.part chunkwise; }; } \
    && cd chunkwise && make env \
    && .venv/bin/pip install --quiet \"jax[tpu]==\$(.venv/bin/python -c 'import jax; print(jax.__version__)')\" \
    && touch .ready; }; }"
}

# One connection a host, because gcloud hands back the program's exit code only then. Returns the smallest that is not
# 0: an error of the program's own counts before the 76 or 134 of those that lost it, and before the 255 of a connection.
# JAX_NUM_PROCESSES=auto: these hosts have no variables that describe the job, jax asks their metadata server.
train() {
  local hosts host pid one code=0 pids=()
  if ! hosts=$(described 'networkEndpoints.len()') || ! [[ $hosts =~ ^[1-9][0-9]*$ ]]; then
    cat "$errors" >&2
    return 255
  fi
  for ((host = 0; host < hosts; host++)); do
    on "$host" "cd chunkwise && JAX_NUM_PROCESSES=auto exec .venv/bin/python launch.py \
      --config configs/openpi_ript/pi0_full.py --run.dir $(printf %q "$RUN") --run.resume \
      --run.compile-cache $(printf %q "$RUN").programs --data.path $(printf %q "$DATA") \
      --mesh.data 4 --mesh.fsdp 8 --checkpoint.every 500" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do
    one=0
    wait "$pid" || one=$?
    if ((one > 0 && (code == 0 || one < code))); then code=$one; fi
  done
  return "$code"
}

unready=0
for ((restart = 0; restart <= MAX_RESTARTS; restart++)); do
  found=$(state) || exit 1
  [ "$found" = READY ] || make_anew
  code=0
  set_up || code=$?
  if ((code)); then
    ((++unready < TRIES)) || exit "$code"
    echo "setting up ended with $code: trying again"
    sleep "$PAUSE"
    continue
  fi
  unready=0
  train || code=$?
  case $code in
    0) exit 0 ;;
    75 | 76 | 134) echo "ended with $code: going on" ;;
    255)
      echo "the connection broke: going on"
      sleep "$PAUSE"
      ;;
    *)
      found=$(state) || exit "$code"
      [ "$found" != READY ] || exit "$code"
      echo "ended with $code on a machine that is $found by now: going on"
      ;;
  esac
done
echo "not started again after $MAX_RESTARTS restarts"
exit "$code"
