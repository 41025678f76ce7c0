#!/usr/bin/env bash
# Makes a virtual environment, installs specdec and lets the demo pair translate
# and correct a few sentences, speculatively and plainly side by side.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
environment="${SPECDEC_DEMO_VENV:-.venv/demo}"
install_into "$environment" .
specdec="$PWD/$environment/bin/specdec"

echo; echo "== English to German =="
"$specdec" generate --compare --batch_size=1 --gamma=4 \
  "A small brown dog is running along the beach." \
  "Two children are building a tower out of wooden blocks." \
  "An old man with a grey beard reads a newspaper on a bench." \
  "A woman in a blue jacket is riding her bicycle through the snow."

echo; echo "== Correcting English =="
"$specdec" generate --task=correct --compare --batch_size=1 --gamma=4 \
  "A small brown dog is is runing along the beach." \
  "Two childern are building tower a out of wooden blocks." \
  "an old man with a Grey beard reads a newspaper on a bench."
