#!/usr/bin/env bash
# Runs the rows of the paper's walltime table on this device and sets paper, prediction and
# measurement side by side. Models of the paper's sizes are the demo pair widened: its
# acceptance at their cost, and labelled so.
#
#   scripts/reproduce.sh [FOLDER]        records, tables and report.html go there [reproduced]
#
# The largest target that fits the device's memory is taken (T5-XXL, all twelve rows, from some
# 32 GiB on; on a CPU T5-base). What may be set:
#   SPECDEC_TARGET   small, base, large, xl or xxl
#   SPECDEC_GAMMAS   such as 2,3 in place of the paper's [on a CPU 2,3: its v is far from 1]
#   SPECDEC_PAIR     a pair of your own [demo]
#   SPECDEC_TASKS    NAME_IN_TABLE=TASK,... [ende=translate,correct=correct]
#   SPECDEC_INPUTS   folder with TASK.txt, a text a line [scripts/inputs]
#   SPECDEC_REPEATS  rounds [15]
#   SPECDEC_BIN      folder with python and specdec, instead of an environment of its own
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
folder="${1:-reproduced}"
pair="${SPECDEC_PAIR:-demo}"
inputs="${SPECDEC_INPUTS:-scripts/inputs}"
tasks="${SPECDEC_TASKS:-ende=translate,correct=correct}"
bin="${SPECDEC_BIN:-}"
gammas="${SPECDEC_GAMMAS:-}"
if compgen -G "/dev/accel*" > /dev/null || [ -d /dev/vfio ]; then
  extras=plots,tpu
elif command -v nvidia-smi > /dev/null; then
  extras=plots,gpu
else
  extras=plots gammas="${gammas:-2,3}"
fi
if [ -z "$bin" ]; then
  install_into .venv/reproduce ".[$extras]"
  bin="$PWD/.venv/reproduce/bin"
fi

mkdir -p "$folder"
rows="$("$bin/python" scripts/walltime_rows.py --tasks="$tasks" \
  --target="${SPECDEC_TARGET:-}" --gammas="$gammas")"
[ -n "$rows" ] || { echo "no drafter of the table is smaller than the target" >&2; exit 2; }
walltime=()
while read -r target drafter row task temperature gamma; do
  record="$folder/$row-$target-$drafter-t$temperature-g$gamma.json"
  walltime+=("--record=$record")
  # What an interrupted run left stands.
  [ -s "$record" ] && continue
  echo "== $row: T5-$target, T5-$drafter, temperature $temperature, gamma $gamma =="
  "$bin/specdec" bench --pair="$pair" --widen_target="$target" --widen_drafter="$drafter" \
    --task="$task" --record_task="$row" --temperature="$temperature" --gamma="$gamma" \
    --batch_size=1 --repeats="${SPECDEC_REPEATS:-15}" --input_file="$inputs/$task.txt" \
    --json="$record.part" --overwrite < /dev/null
  mv "$record.part" "$record"
done <<< "$rows"

"$bin/specdec" table walltime "${walltime[@]}" | tee "$folder/walltime.md"
"$bin/specdec" table expected "${walltime[@]}" | tee "$folder/expected.md"
# Acceptance does not go by size: the pair as it is.
alphas=()
for pairing in ${tasks//,/ }; do
  task="${pairing#*=}"
  for temperature in 0 1; do
    record="$folder/alpha-$task-t$temperature.json"
    alphas+=("--record=$record")
    [ -s "$record" ] && continue
    "$bin/specdec" alpha --pair="$pair" --task="$task" --temperature="$temperature" \
      --leniences=1,0.5,0.3,0.1 --input_file="$inputs/$task.txt" \
      --json="$record.part" --overwrite < /dev/null
    mv "$record.part" "$record"
  done
done
"$bin/specdec" table alpha "${alphas[@]}" | tee "$folder/alpha.md"
"$bin/specdec" report "${walltime[@]}" "${alphas[@]}" --output="$folder/report.html" --overwrite
