# For tools/soak.sh: what passes, fails and is skipped, counted; logs in build/test-logs.
passed=0 failed=0 skipped=0
logs=build/test-logs
mkdir -p "$logs"

sum() { awk '{n += $1} END {print n + 0}'; }
number_after() { grep -aoE "$1 [0-9]+" "$2" | grep -oE '[0-9]+$' | sum; }

# step NAME COMMAND...: one command that passes or fails as a whole
step() {
  local name=$1
  shift
  if "$@" >"$logs/$name.log" 2>&1; then
    passed=$((passed + 1))
    echo "ok: $name"
  else
    failed=$((failed + 1))
    echo "FAILED: $name"
    tail -n 60 "$logs/$name.log"
  fi
}

# suite NAME COMMAND...: a GoogleTest program or Python's unittest, counted test by test
suite() {
  local name=$1 log="$logs/$1.log" rc=0 started=$SECONDS ok bad skip ran
  shift
  timeout "${suite_seconds:-1500}" "$@" >"$log" 2>&1 || rc=$?
  ran=$(number_after '^Ran' "$log")
  skip=$(($(number_after '^\[  SKIPPED \]' "$log") + $(number_after 'skipped=' <(sed 's/skipped=/skipped= /' "$log"))))
  bad=$(($(grep -acE '^\[  FAILED  \] .* \([0-9]+ ms\)$' "$log") + $(number_after '(failures|errors)=' <(sed -E 's/(failures|errors)=/\1= /g' "$log"))))
  ok=$(($(number_after '^\[  PASSED  \]' "$log") + (ran > 0 ? ran - bad - skip : 0)))
  if [ $rc != 0 ] && [ $bad = 0 ]; then bad=1; fi  # it died before it could count
  if [ $rc = 0 ] && [ $((ok + skip)) = 0 ]; then bad=1; echo "no test ran" >>"$log"; fi
  passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
  if [ $bad = 0 ]; then
    echo "ok: $name: $ok passed, $skip skipped, $((SECONDS - started)) s"
  else
    echo "FAILED: $name: $bad failed (exit $rc)"
    grep -aE 'Failure|FAILED|ERROR|FAIL:|error:' "$log" | head -n 40
    tail -n 60 "$log"
  fi
}

closing_line() {  # last: "N passed, M failed, K skipped", and whether none failed
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" = 0 ]
}
