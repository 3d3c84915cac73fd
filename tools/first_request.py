"""Asks a model of the stubserve that is installed, as its first user does: `PYTHON tools/first_request.py`.

`stubserve init` writes a model, `stubserve serve` serves it on a free port, and the model's own client asks it. With
`--compiled` the modules have to be compiled. It needs nothing but Python's library: `make release` and cibuildwheel
run it in an environment that has a wheel and nothing else.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile

from stubserve.http import connection

STUBSERVE = [sys.executable, "-m", "stubserve"]
SERVE = [*STUBSERVE, "serve", "models", "--http-address=127.0.0.1", "--http-port=0"]


def main() -> None:
    if connection.__file__.endswith(".py") is ("--compiled" in sys.argv):
        sys.exit(f"{connection.__file__} is {'not ' if '--compiled' in sys.argv else ''}compiled")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*STUBSERVE, "init", "models/twice"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        command = [*SERVE, "--allow-grpc=false", "--allow-metrics=false"]
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            assert server.stdout is not None
            said = ""
            for line in server.stdout:
                said += line
                found = re.search(r"Started HTTPService at ([\d.:]+)", line)
                if found is not None:
                    client = [sys.executable, f"{folder}/models/twice/client.py", f"--url=http://{found[1]}"]
                    subprocess.run(client, check=True)
                    return
            sys.exit(said)
        finally:
            server.terminate()
            server.communicate()


if __name__ == "__main__":
    main()
