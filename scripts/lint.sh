#!/usr/bin/env bash
# The linter, the import rules and the types, with the tools of the test environment
# (scripts/test.sh makes it). Nothing is fetched.
#
#   scripts/lint.sh             all of them
#   scripts/lint.sh pyright     one of them: ruff, imports, pyright or hooks
set -euo pipefail
cd "$(dirname "$0")/.."
bin="${SPECDEC_TEST_VENV:-.venv/test}/bin"

ruff() { "$bin/ruff" check .; }
imports() { "$bin/lint-imports"; }
# Otherwise it asks a registry whether there is a newer one.
pyright() { PYRIGHT_PYTHON_IGNORE_WARNINGS=1 "$bin/pyright" --pythonpath "$bin/python"; }
hooks() { "$bin/pre-commit" validate-config; }

for check in ${1:-ruff imports pyright hooks}; do
  "$check"
done
