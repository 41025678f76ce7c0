#!/usr/bin/env bash
# Makes a virtual environment, installs specdec with its test extra and runs the
# checkers and the whole suite against the installed package.
#
#   scripts/test.sh                     everything
#   scripts/test.sh tests/core -k eos   arguments go to pytest
#
# SPECDEC_TEST_COVERAGE=1 tells at the end what of the package was run.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
environment="${SPECDEC_TEST_VENV:-.venv/test}"
# Not editable: the tests see what a user installs, package data included.
install_into "$environment" ".[test]"
SPECDEC_TEST_VENV="$environment" bash scripts/lint.sh

# Without the checkout on the path, `specdec` is the installed package.
export PYTHONSAFEPATH=1
export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}" TF_CPP_MIN_LOG_LEVEL=2
# Nearly all of the suite's time is compilation. The code generator at its lowest level takes
# half of it; SPECDEC_TEST_XLA_FLAGS= tests what users run.
export XLA_FLAGS="${XLA_FLAGS:-} ${SPECDEC_TEST_XLA_FLAGS---xla_backend_optimization_level=0}"
# A program that one process has compiled is read by the others, for as long as this run lasts.
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
if [ -z "${JAX_COMPILATION_CACHE_DIR:-}" ]; then
  export JAX_COMPILATION_CACHE_DIR="$scratch/xla" JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
  export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=0
fi

covered=()
if [ -n "${SPECDEC_TEST_COVERAGE:-}" ]; then
  export COVERAGE_FILE="$scratch/coverage"
  covered=(--cov --cov-report=)
fi
# A process per core; tests of one file share compiled programs, so they stay together. The
# slow files begin first, see tests/conftest.py.
status=0
"$environment/bin/python" -m pytest -p no:cacheprovider --import-mode=importlib \
  -n "${SPECDEC_TEST_PROCESSES:-2}" --dist loadfile --no-loadscope-reorder \
  ${covered[@]+"${covered[@]}"} "$@" || status=$?
if [ -n "${SPECDEC_TEST_COVERAGE:-}" ] && [ -e "$COVERAGE_FILE" ]; then
  total="$("$environment/bin/coverage" report --format=total)"
  echo "Of the package's statements $total % were run (those of other processes do not count). Least of:"
  "$environment/bin/coverage" report --skip-empty --sort=cover | sed -n '3,10p'
fi
exit "$status"
