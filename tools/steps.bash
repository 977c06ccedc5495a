# Functions for timed steps, and the setup of the scripts. Sourced by tools/quickstart, tools/test, tools/gpu-check and
# tools/gpu-figures.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."

jobs=$(nproc)
export jobs
step_times=()
step_status=0
keep_going=no
failed_steps=()

# optional_step NAME COMMAND...: runs the command under a heading, records the time, and stores the exit code in
# step_status. Do not call the function in a condition, because bash ignores -e there.
optional_step() {
  local name=$1 begin=$EPOCHREALTIME status outcome=""
  shift
  printf '\n== %s\n' "$name" >&2
  set +e
  (set -e; "$@")
  status=$?
  step_status=$status
  set -e
  [ $status -eq 0 ] || outcome=", failed ($status)"
  local tenths=$(((${EPOCHREALTIME/[.,]/} - ${begin/[.,]/}) / 100000))
  local seconds=$((tenths / 10)).$((tenths % 10))
  step_times+=("$(printf '%8s s  %s%s' $seconds "$name" "$outcome")")
  printf '== %s: %s s%s\n' "$name" $seconds "$outcome" >&2
}

# step NAME COMMAND...: like optional_step. A failure ends the script with the exit code of the command. With
# keep_going=yes, the script continues, and failed_steps has the name of the step.
step() {
  optional_step "$@"
  if [ $step_status -ne 0 ]; then
    failed_steps+=("$1")
    [ $keep_going = yes ] || exit $step_status
  fi
}

# packages yes|no SET...: yes: installs the missing packages. no: prints the missing packages and exits with code 2.
packages() {
  local install=$1 lacking
  shift
  lacking=$(tools/packages missing "$@")
  if [ -z "$lacking" ]; then
    echo "all there" >&2
  elif [ "$install" = yes ]; then
    tools/packages install "$@" >&2
  else
    printf 'Missing packages. Run this (as root), then this script again:\napt-get install %s\n' "$lacking" >&2
    exit 2
  fi
}

# Creates .venv with the packages of notebooks/requirements.txt, for the figures. Its Python finds the package in python/.
# .venv has a copy of the requirements, to detect changes. If the installation fails, .venv is removed.
figures_python() {
  local wanted=notebooks/requirements.txt made=.venv/requirements.txt
  if cmp -s "$wanted" "$made"; then
    echo "all there" >&2
    return
  fi
  rm -rf .venv
  trap 'rm -rf .venv' ERR
  /usr/bin/python3 -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement "$wanted"
  echo "$PWD/python" >"$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/kvtwin.pth"
  cp "$wanted" "$made"
  trap - ERR
}
