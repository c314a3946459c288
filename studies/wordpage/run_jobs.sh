#!/usr/bin/env bash
# Answers jobs, two threads each, as many at once as there are pairs of CPUs:  run_jobs.sh OUT SECONDS < JOBS
# A line of JOBS is "NAME COMMAND..."; its answers are OUT/NAME.jsonl, its messages OUT/NAME.err. Jobs start in this order and are ended when SECONDS
# have passed; what they had written by then counts. OUT/log: when each job ended, after how long, and its exit status.
set -u
out=$1 limit=$2
mkdir -p "$out/taken"
mapfile -t jobs
mapfile -t cpus < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)), sep="\n")' 2>/dev/null || seq 0 "$(($(nproc) - 1))")
[ "${#cpus[@]}" -le "${MAX_CPUS:-16}" ] || cpus=("${cpus[@]:0:${MAX_CPUS:-16}}")
{ date; lscpu; echo "CPUs used: ${cpus[*]}"; } >"$out/machine" 2>&1

work() { # CPU CPU
  local line name command began left status pin=(taskset -c "$1,$2")
  "${pin[@]}" true 2>/dev/null || pin=()
  for line in "${jobs[@]}"; do
    read -r name command <<<"$line"
    left=$((limit - SECONDS))
    [ "$left" -gt 5 ] || return
    mkdir "$out/taken/${name//\//-}" 2>/dev/null || continue
    mkdir -p "$(dirname "$out/$name")"
    began=$SECONDS
    timeout -k 5 "$left" "${pin[@]}" bash -c "$command" >"$out/$name.jsonl" 2>"$out/$name.err" </dev/null
    status=$?
    echo "$SECONDS s: $name took $((SECONDS - began)) s on $1,$2, status $status" >>"$out/log"
  done
}
for ((i = 0; i + 1 < ${#cpus[@]}; i += 2)); do work "${cpus[i]}" "${cpus[i + 1]}" & done
wait
echo "$SECONDS s, $(wc -l <"$out/log") of ${#jobs[@]} jobs" | tee -a "$out/log"
