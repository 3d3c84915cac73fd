#!/usr/bin/env bash
# Installs what stubserve is measured against: real Triton 2.51 with its Python backend, and NVIDIA's perf_analyzer.
#
#   tools/peers.sh [DIR]      DIR: $PEERS_DIR, or stubserve-peers in the user's cache folder
#
# Triton comes from the nvidia-pytriton wheel, perf_analyzer from an older tritonclient wheel, both into DIR and nowhere
# else; only the Debian package libb64-0d, which perf_analyzer links to, is installed into the system (root needed).
# Afterwards `source DIR/env.sh` gives the shell functions `triton` and `pa`. Running it again changes nothing.
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}
dir=${1:-${PEERS_DIR:-$cache/stubserve-peers}}
mkdir -p "$dir/wheels"
dir=$(cd "$dir" && pwd)
venv=$dir/triton

pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv"
fi
pip install nvidia-pytriton==0.7.0

home=$("$venv/bin/python" -c 'import pathlib, pytriton; print(pathlib.Path(pytriton.__file__).parent / "tritonserver")')
version=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# The wheel carries one stub per Python version; the backend runs the one that lies beside it.
install -m 755 "$home/python_backend_stubs/$version/triton_python_backend_stub" "$home/backends/python/"
chmod +x "$home/bin/tritonserver"

pip download --no-deps --dest "$dir/wheels" tritonclient==2.51.0 nvidia-cuda-runtime-cu12==12.6.77
unpack() { "$venv/bin/python" -m zipfile -e "$dir"/wheels/$1 "$dir/$2"; }
unpack 'tritonclient-2.51.0*.whl' perf_analyzer
unpack 'nvidia_cuda_runtime_cu12*.whl' cuda_runtime
analyzer=$dir/perf_analyzer/tritonclient-2.51.0.data/data/bin/perf_analyzer
chmod +x "$analyzer"

if ! dpkg -s libb64-0d >/dev/null 2>&1; then
  apt-get update -qq
  apt-get install -y -qq libb64-0d >/dev/null
fi

cat >"$dir/env.sh" <<ENV
export TRITON_HOME=$home
export TRITON_VENV=$venv
export PERF_ANALYZER=$analyzer
export PA_LIBS=$dir/cuda_runtime/nvidia/cuda_runtime/lib
pa() { LD_LIBRARY_PATH=\$PA_LIBS timeout \${PA_TIMEOUT:-60} "\$PERF_ANALYZER" "\$@"; }
triton() { PATH=\$TRITON_VENV/bin:\$PATH exec "\$TRITON_HOME/bin/tritonserver" --backend-directory "\$TRITON_HOME/backends" "\$@"; }
ENV
echo "ready: source $dir/env.sh"
