"""The process that fuzzes one target: `python -m tools.fuzz.guided TARGET FOLDER SECONDS`.

atheris counts which lines of the server an input reaches, and goes on from those that reach new ones. Where it is not
installed, inputs are changed at random instead. What is found goes into the folder; the process goes on.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from . import mutation
from .finding import Findings

try:
    import atheris
except ImportError:
    atheris = None

# An input that takes longer, or more, ends the process: libFuzzer's own watch. It counts time in which the process is
# stopped, or waits for a busy machine; `finding.bounded` counts only what the input itself takes.
HANGS_S, TOO_MUCH_MIB = 300, 2048


def main() -> None:
    name, folder, seconds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    findings = Findings(folder)
    if atheris is None:
        from . import targets

        target = targets.load(name)
        deadline = time.monotonic() + seconds
        with targets.running(target):
            for data in mutation.inputs(target.SEEDS, target.WORDS, 1 << 60):
                if time.monotonic() > deadline:
                    break
                findings.examine(target.fuzz_one, data)
        return
    with atheris.instrument_imports(include=["stubserve", "stubserve_stub", "hpack", "tools.fuzz.targets"]):
        from . import targets

        target = targets.load(name)
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(target.SEEDS):
        (corpus / f"seed{number}").write_bytes(seed)
    words = folder / "words"
    escaped = ("".join(f"\\x{byte:02x}" for byte in word) for word in target.WORDS)
    words.write_text("".join(f'"{word}"\n' for word in escaped))
    flags = [
        f"-max_total_time={seconds}",
        f"-max_len={mutation.LONGEST}",
        f"-timeout={HANGS_S}",
        f"-rss_limit_mb={TOO_MUCH_MIB}",
        f"-dict={words}",
        f"-artifact_prefix={folder}/",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], lambda data: findings.examine(target.fuzz_one, data))
    with targets.running(target):
        atheris.Fuzz()


if __name__ == "__main__":
    main()
