#!/bin/bash
#SBATCH --job-name=equipoise
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=1
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@300

set -euo pipefail
source "$HOME/equipoise/.venv/bin/activate"       # the same environment on every node
export RAY_USAGE_STATS_ENABLED=0
export EQUIPOISE_CACHE="${TMPDIR:-/tmp}/equipoise"  # fast, and each node's own

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{print $1}'):6379

srun --nodes=1 --ntasks=1 -w "$head" --overlap \
  ray start --head --block --port=6379 --include-dashboard=false --num-cpus="$SLURM_CPUS_PER_TASK" &
sleep 20
for node in "${nodes[@]:1}"; do
  srun --nodes=1 --ntasks=1 -w "$node" --overlap \
    ray start --block --address="$address" --num-cpus="$SLURM_CPUS_PER_TASK" &
done
sleep 20

srun --nodes=1 --ntasks=1 -w "$head" --overlap \
  equipoise run "$HOME/my.toml" engine.kind=ray engine.address="$address" engine.gpus=0.25 --out "$HOME/runs/mine"
