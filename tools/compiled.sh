#!/usr/bin/env bash
# Makes an environment in which stubserve is compiled, as it is in its wheels.
#
#   tools/compiled.sh PYTHON DIR
#
# DIR becomes an environment beside that of PYTHON: it sees the same packages, but for stubserve, which comes from a
# wheel that is built here. That takes a minute or two. Without a C compiler DIR is not there afterwards: stubserve runs
# as well without it, only slower. Where there is a compiler and it fails, so does this.
set -euo pipefail
python=$1
dir=$2
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT

rm -rf "$dir"
if ! command -v "${CC:-cc}" >/dev/null; then
  echo "stubserve is not compiled, since there is no C compiler (${CC:-cc}); it runs without, only slower." >&2
  exit 0
fi
echo "Compiling what every request passes through. This takes a minute or two." >&2
if ! HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 "$python" -m hatchling build -t wheel -d "$built" >"$built/log" 2>&1; then
  tail -20 "$built/log" >&2
  echo "stubserve cannot be compiled, for the reason above. It runs without, only slower." >&2
  exit 1
fi
"$python" -m venv --without-pip "$dir"
where='import sysconfig; print(sysconfig.get_path("purelib"))'
"$python" -c "$where" >"$("$dir/bin/python" -c "$where")/beside.pth"
"$python" -m pip --disable-pip-version-check --python "$dir/bin/python" install --quiet --no-deps "$built"/*.whl
