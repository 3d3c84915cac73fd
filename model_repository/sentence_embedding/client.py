"""Searches sentences by what they mean, with sentence_embedding, and prints the nearest.

    python model_repository/sentence_embedding/client.py [QUERY] [--file FILE] [--top 3] [--url localhost:8000]

Without a FILE it searches the Zen of Python, which every Python brings along; of a FILE it searches the paragraphs.
Needs numpy and `tritonclient[http]`.
"""

import argparse
import codecs
import contextlib
import io
import sys
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

AT_A_TIME = 64  # max_batch_size in config.pbtxt


def zen() -> list[str]:
    """The nineteen sentences of `import this`."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    return codecs.decode(this.s, "rot13").splitlines()[2:]


def paragraphs(file: Path) -> list[str]:
    return [" ".join(text.split()) for text in file.read_text().split("\n\n") if text.strip()]


def embed(client: triton.InferenceServerClient, texts: list[str]) -> np.ndarray:
    """A vector of length 1 for each text, as rows."""
    found = []
    for start in range(0, len(texts), AT_A_TIME):
        batch = [[text.encode()] for text in texts[start : start + AT_A_TIME]]
        tensor = triton.InferInput("TEXT", [len(batch), 1], "BYTES")
        tensor.set_data_from_numpy(np.array(batch, dtype=np.object_))
        found.append(client.infer("sentence_embedding", [tensor]).as_numpy("EMBEDDING"))
    return np.concatenate(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("query", nargs="?", default="mistakes should be visible", help="(default: %(default)s)")
    parser.add_argument("--file", type=Path, help="a text whose paragraphs to search (default: the Zen of Python)")
    parser.add_argument("--top", type=int, default=3, help="how many to print (default: %(default)s)")
    parser.add_argument(
        "--url", default="localhost:8000", help="HOST:PORT of the server's HTTP side (default: %(default)s)"
    )
    args = parser.parse_args()

    try:
        texts = paragraphs(args.file) if args.file else zen()
    except OSError as error:
        sys.exit(f"cannot read {args.file}: {error.strerror}")
    try:
        with triton.InferenceServerClient(args.url) as client:
            (query,) = embed(client, [args.query])
            similarity = embed(client, texts) @ query
    except OSError as error:
        sys.exit(f"no server answers at {args.url} ({error}): start one with `stubserve serve model_repository`")
    except InferenceServerException as error:
        sys.exit(f"the server at {args.url} refused: {error}")

    print(f"nearest to: {args.query}")
    for number in np.argsort(-similarity)[: args.top]:
        print(f"{similarity[number]:.2f}  {texts[number]}")


if __name__ == "__main__":
    main()
