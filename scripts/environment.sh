# Sourced by the other scripts: install_into DIR WHAT... makes a virtual environment
# in DIR, if there is none, and installs WHAT with pip. PYTHON names the interpreter.
install_into() {
  local python="${PYTHON:-python3}"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "specdec needs Python 3.11 or newer; $("$python" --version) found: set PYTHON=..." >&2
    exit 2
  }
  [ -x "$1/bin/python" ] || "$python" -m venv "$1"
  echo "Installing into $1 ..."
  # setuptools packs whatever an earlier build left there, files long gone included.
  rm -rf build
  "$1/bin/pip" install --quiet --disable-pip-version-check "${@:2}"
}
