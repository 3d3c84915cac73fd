"""Says when somebody speaks, with voice_activity: in a WAV file, or into the microphone.

    python model_repository/voice_activity/client.py [FILE.wav | --microphone] [--callers 1] [--url localhost:8000]

Without a FILE it listens to a conversation that `stubserve fetch` has got. Audio goes to the server in pieces of 32 ms,
as they come, and each call is one sequence. Needs numpy and `tritonclient[http]`; for a microphone also `sounddevice`.
"""

import argparse
import itertools
import os
import sys
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

RATE = 16000  # samples a second
PIECE = 512  # samples in a request
BEGINS, ENDS = 0.5, 0.35  # speech begins above the one, and ends below the other ...
PAUSE = 5  # ... for so many pieces
CONVERSATION = Path(__file__).with_name("conversation.wav")


def of_file(file: Path) -> Iterator[np.ndarray]:
    """Pieces of a WAV file with 16 bits a sample; its channels are mixed, and other rates brought to 16 kHz."""
    with wave.open(str(file)) as opened:
        if opened.getsampwidth() != 2:
            raise wave.Error(f"has {8 * opened.getsampwidth()} bits a sample, and this client reads 16")
        rate, channels = opened.getframerate(), opened.getnchannels()
        samples = np.frombuffer(opened.readframes(opened.getnframes()), "<i2").reshape(-1, channels).mean(1) / 32768
    if rate != RATE:
        samples = np.interp(np.arange(0, len(samples), rate / RATE), np.arange(len(samples)), samples)
    samples = np.pad(samples, (0, -len(samples) % PIECE))
    return iter(samples.astype(np.float32).reshape(-1, PIECE))


def of_microphone() -> Iterator[np.ndarray]:
    try:
        import sounddevice
    except (ImportError, OSError) as error:
        sys.exit(f"--microphone needs the package sounddevice, and PortAudio: pip install sounddevice ({error})")
    with sounddevice.InputStream(RATE, PIECE, channels=1, dtype="float32") as stream:
        print("listening; ctrl-C ends")
        while True:
            yield stream.read(PIECE)[0][:, 0]


def probabilities(client: triton.InferenceServerClient, call: str, pieces: Iterator[np.ndarray]) -> Iterator[float]:
    """How likely it is speech, for each piece; a call ends with its last one."""
    piece, first = next(pieces, None), True
    while piece is not None:
        following = next(pieces, None)
        tensor = triton.InferInput("AUDIO", [PIECE], "FP32")
        tensor.set_data_from_numpy(piece)
        result = client.infer(
            "voice_activity", [tensor], sequence_id=call, sequence_start=first, sequence_end=following is None
        )
        yield result.as_numpy("SPEECH").item()
        piece, first = following, False


def segments(likely: Iterator[float]) -> Iterator[tuple[float, float]]:
    """Beginning and end of what is spoken, in seconds."""
    begun = None
    quiet = number = 0
    for number, probability in enumerate(itertools.chain(likely, [0.0] * PAUSE)):
        quiet = 0 if probability >= ENDS else quiet + 1
        if begun is None and probability >= BEGINS:
            begun = number
        elif begun is not None and quiet == PAUSE:
            yield begun * PIECE / RATE, (number + 1 - PAUSE) * PIECE / RATE
            begun = None


def listen(url: str, call: str, pieces: Iterator[np.ndarray], heard: list[tuple[float, float]], prints: bool) -> None:
    with triton.InferenceServerClient(url, network_timeout=150, connection_timeout=150) as client:
        for begins, ends in segments(probabilities(client, call, pieces)):
            heard.append((begins, ends))
            if prints:
                print(f"{begins:6.2f} s to {ends:6.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group()
    source.add_argument("file", nargs="?", type=Path, default=CONVERSATION, help="a WAV file (default: a conversation)")
    source.add_argument("--microphone", action="store_true", help="listen to the microphone until ctrl-C")
    parser.add_argument("--callers", type=int, default=1, help="how many call at once (default: %(default)s)")
    parser.add_argument(
        "--url", default="localhost:8000", help="HOST:PORT of the server's HTTP side (default: %(default)s)"
    )
    args = parser.parse_args()

    heard: list[list[tuple[float, float]]] = [[] for _ in range(args.callers)]
    try:
        sources = [of_microphone() if args.microphone else of_file(args.file) for _ in heard]
        with ThreadPoolExecutor(len(sources)) as pool:
            others = [
                pool.submit(listen, args.url, f"call-{os.getpid()}-{number}", source, heard[number], False)
                for number, source in enumerate(sources[1:], 1)
            ]
            listen(args.url, f"call-{os.getpid()}-0", sources[0], heard[0], True)
        for other in others:
            other.result()
    except KeyboardInterrupt:
        return
    except FileNotFoundError:
        advice = ": `stubserve fetch model_repository` gets it" if args.file == CONVERSATION else ""
        sys.exit(f"there is no {args.file}{advice}")
    except (wave.Error, EOFError) as error:
        sys.exit(f"cannot read {args.file}: {str(error) or 'it ends too early'}")
    except OSError as error:
        sys.exit(f"no server answers at {args.url} ({error}): start one with `stubserve serve model_repository`")
    except InferenceServerException as error:
        sys.exit(f"the server at {args.url} refused: {error}")
    if len(heard) > 1:
        same = sum(one == heard[0] for one in heard)
        print(f"{same} of {len(heard)} callers heard the same")


if __name__ == "__main__":
    main()
