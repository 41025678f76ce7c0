#!/usr/bin/env bash
# Makes a virtual environment, installs specdec with its test extra and runs the
# linter and the whole suite against the installed package.
#
#   scripts/test.sh                     everything
#   scripts/test.sh tests/core -k eos   arguments go to pytest
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
environment="${SPECDEC_TEST_VENV:-.venv/test}"
# Not editable: the tests see what a user installs, package data included.
install_into "$environment" ".[test]"
"$environment/bin/ruff" check .
"$environment/bin/lint-imports"

# Without the checkout on the path, `specdec` is the installed package.
export PYTHONSAFEPATH=1
export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}" TF_CPP_MIN_LOG_LEVEL=2
# Nearly all of the suite's time is compilation. The code generator at its lowest level takes
# half of it, on the same optimised HLO; SPECDEC_TEST_XLA_FLAGS= tests what users run.
export XLA_FLAGS="${XLA_FLAGS:-} ${SPECDEC_TEST_XLA_FLAGS---xla_backend_optimization_level=0}"
# A process per core; tests of one file share compiled programs, so they stay together.
exec "$environment/bin/python" -m pytest -p no:cacheprovider --import-mode=importlib \
  -n "${SPECDEC_TEST_PROCESSES:-2}" --dist loadfile "$@"
