#!/usr/bin/env bash
# Runs a short part of the suite with the oldest or the newest release that setup.py allows of
# everything that specdec itself needs.
#
#   scripts/test_versions.sh oldest
#   scripts/test_versions.sh newest
#   scripts/test_versions.sh oldest tests/core -k eos   other tests; arguments go to pytest
#
# Environments are made in .venv/oldest and .venv/newest.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
which="${1:-}"
if [ "$which" != oldest ] && [ "$which" != newest ]; then
  echo "usage: scripts/test_versions.sh oldest|newest [arguments for pytest]" >&2
  exit 2
fi
shift
[ $# -gt 0 ] || set -- \
  tests/core/test_loop.py tests/core/test_keys.py tests/core/test_rows.py \
  tests/drafters/test_uniform.py tests/models/t5/test_network.py tests/data/test_vocabulary.py \
  tests/checkpoints/test_bundle.py tests/checkpoints/test_mapping.py \
  tests/engine/test_engine_generate.py tests/engine/test_streaming.py tests/cli/test_cli_generate.py

environment=".venv/$which"
# The tests' own tools, of any release.
tools=(pytest hypothesis scipy)
if [ "$which" = oldest ]; then
  install_into "$environment" packaging
  # An oldest release is the one that a lower bound names.
  "$environment/bin/python" - > "$environment/constraints.txt" <<'P'
import pathlib
import re

from packaging.requirements import Requirement

text = pathlib.Path("setup.py").read_text()
listed = re.search(r"install_requires=\[(.*?)\]", text, re.DOTALL)[1]
for line in re.findall(r'"([^"]+)"', listed):
  requirement = Requirement(line)
  (bound,) = (s.version for s in requirement.specifier if s.operator == ">=")
  print(f"{requirement.name}=={bound}")
P
  install_into "$environment" --constraint "$environment/constraints.txt" . "${tools[@]}"
else
  install_into "$environment" --upgrade --upgrade-strategy eager . "${tools[@]}"
fi
"$environment/bin/pip" list --disable-pip-version-check | grep -iE \
  '^(jax|jaxlib|flax|orbax|absl|gin|sentencepiece|tensorstore|ml_dtypes|numpy|rich)'

export PYTHONSAFEPATH=1 JAX_PLATFORMS="${JAX_PLATFORMS:-cpu}" TF_CPP_MIN_LOG_LEVEL=2
export XLA_FLAGS="${XLA_FLAGS:-} --xla_backend_optimization_level=0"
exec "$environment/bin/python" -m pytest -p no:cacheprovider --import-mode=importlib "$@"
