#!/usr/bin/env bash
# Installs the Python servers that stubserve is compared with: mosec, litserve, FastAPI with uvicorn, BentoML.
#
#   tools/rivals.sh [DIR]      DIR: $RIVALS_DIR, or stubserve-rivals in the user's cache folder
#
# They get a virtual environment of their own in DIR, made by $PYTHON (python3). To compare interpreters, use one DIR for each.
# Running it again changes nothing; for newer versions remove DIR first.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}
dir=${1:-${RIVALS_DIR:-$cache/stubserve-rivals}}
if [ ! -x "$dir/bin/python" ]; then
  "${PYTHON:-python3}" -m venv "$dir"
fi
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$(dirname "$0")/bench/rivals/requirements.txt"
