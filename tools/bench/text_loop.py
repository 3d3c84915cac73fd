"""The most that the code of a text model gives: a loop that does nothing but run it, in a process of its own.

`python -m tools.bench.text_loop FOLDER BATCH SECONDS` runs it on the texts that are sent to servers, in batches of that
size, and prints how many it does a second.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from .varied import Variety
from .wrk import LoadError


def rows(folder: Path, batch: int, texts: list[str]) -> list[np.ndarray[Any, Any]]:
    """What the model in a folder makes of each text alone."""
    from .text_model import TextModel

    model = TextModel(folder, batch)
    return [model.run([text])[0] for text in texts]


def run(python: str, folder: Path, batch: int, seconds: float) -> float:
    """Runs the loop in a process of the interpreter `python`: texts per second. Raises LoadError."""
    command = [python, "-m", "tools.bench.text_loop", str(folder), str(batch), str(seconds)]
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode != 0:
        raise LoadError(f"the bare loop: {finished.stderr[-800:]}")
    return float(finished.stdout)


def main() -> None:
    from .text_model import TextModel

    folder, batch, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    variety = Variety()
    texts = [text for _ in range(1024) for text in variety.json_texts("m", 1).outputs[0].values]
    model = TextModel(folder, batch)
    model.run(texts[:batch])
    count = 0
    begin = now = time.perf_counter()
    while now < begin + seconds:
        at = count % len(texts)
        model.run(texts[at : at + batch])
        count += batch
        now = time.perf_counter()
    print(count / (now - begin))


if __name__ == "__main__":
    main()
