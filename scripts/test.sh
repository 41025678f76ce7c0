#!/usr/bin/env bash
# Makes a virtual environment, installs specdec with its test extra and runs the
# linter and the whole suite against the installed package.
#
#   scripts/test.sh                     everything
#   scripts/test.sh tests/core -k eos   arguments go to pytest
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
environment="${SPECDEC_TEST_VENV:-.venv/test}"

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "specdec needs Python 3.11 or newer; $("$python" --version) found: set PYTHON=..." >&2
  exit 2
}
[ -x "$environment/bin/python" ] || "$python" -m venv "$environment"
# Not editable: the tests see what a user installs, package data included.
"$environment/bin/pip" install --quiet --disable-pip-version-check ".[test]"
"$environment/bin/ruff" check .
"$environment/bin/lint-imports"

# Without the checkout on the path, `specdec` is the installed package.
export PYTHONSAFEPATH=1
export JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}" TF_CPP_MIN_LOG_LEVEL=2
exec "$environment/bin/python" -m pytest -p no:cacheprovider --import-mode=importlib "$@"
