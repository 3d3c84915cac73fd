"""Sends a picture to ocr and prints the words in it.

    python model_repository/ocr/client.py [PICTURE] [--model ocr] [--boxes] [--url localhost:8000]

The same model comes in three forms, which take and give the same: in one model.py (ocr), put together by configuration
(ocr_ensemble), and by code that calls other models (ocr_bls).
Without a PICTURE it sends the scanned page that the package scikit-image ships. Needs numpy and `tritonclient[http]`.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException


def sample_page() -> Path:
    """The path of scikit-image's scanned page, found without importing the package."""
    package = find_spec("skimage")
    if package is None or package.origin is None:
        sys.exit("name a PICTURE (PNG or JPEG), or `pip install scikit-image` for its sample page")
    return Path(package.origin).parent / "data" / "page.png"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", nargs="?", type=Path, help="a PNG or JPEG file (default: scikit-image's page.png)")
    parser.add_argument(
        "--model", default="ocr", choices=["ocr", "ocr_ensemble", "ocr_bls"], help="who reads it (default: %(default)s)"
    )
    parser.add_argument(
        "--url", default="localhost:8000", help="HOST:PORT of the server's HTTP side (default: %(default)s)"
    )
    parser.add_argument("--boxes", action="store_true", help="print each line's confidence and top left corner too")
    args = parser.parse_args()

    path = args.picture or sample_page()
    try:
        data = path.read_bytes()
    except OSError as error:
        sys.exit(f"cannot read {path}: {error.strerror}")

    # The file goes as it is: one BYTES element. The server decodes it, so the wire carries the compressed form.
    image = triton.InferInput("IMAGE", [1], "BYTES")
    image.set_data_from_numpy(np.array([data], dtype=np.object_))
    try:
        with triton.InferenceServerClient(args.url) as client:
            result = client.infer(args.model, [image])
    except OSError as error:
        sys.exit(f"no server answers at {args.url} ({error}): start one with `stubserve serve model_repository`")
    except InferenceServerException as error:
        sys.exit(f"the server at {args.url} refused: {error}")

    lines = result.as_numpy("TEXT")
    if len(lines) == 0:
        sys.exit(f"no text found in {path}")
    for text, box, score in zip(lines, result.as_numpy("BOXES"), result.as_numpy("SCORES"), strict=True):
        where = f"{score:.2f} at ({box[0][0]:.0f}, {box[0][1]:.0f})  " if args.boxes else ""
        print(where + text.decode())


if __name__ == "__main__":
    main()
