"""The examples, as a newcomer runs them: served out of the box, asked by their own clients, and as the docs show them.

Some need files that `stubserve fetch` takes out of packages. Where those cannot be had their tests are skipped.
"""

from __future__ import annotations

import concurrent.futures
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import wave
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tritonclient.http as triton

from stubserve.checking.repository import check_repositories
from tests.examples import REPOSITORY, ROOT, fetch
from tests.real_server import WORK_S, Serving

DOCS = (ROOT / "docs" / "guides" / "examples.md").read_text()

# A page takes seconds of a processor.
pytestmark = pytest.mark.long
Image, ImageDraw, ImageFont, tokenizers = (
    pytest.importorskip(name, reason="`make examples` installs it")
    for name in ("PIL.Image", "PIL.ImageDraw", "PIL.ImageFont", "tokenizers")
)

OCR = ("ocr", "ocr_ensemble", "ocr_bls")
# Seconds, on a machine that does much else
PATIENT = {"connection_timeout": 150.0, "network_timeout": 150.0}


@pytest.fixture(scope="module")
def fetched() -> None:
    """All files of the examples."""
    fetch()


def serving(*models: str) -> Serving:
    """A server of some of the examples, and of what these need."""
    server = Serving(
        REPOSITORY, "--openai", "--model-control-mode=explicit", *(f"--load-model={name}" for name in models)
    )
    server.patience_s = WORK_S
    return server


def run_client(server: Serving, model: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / model / "client.py"), "--url", f"127.0.0.1:{server.port}", *words],
        capture_output=True,
        text=True,
        timeout=WORK_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def page(lines: list[str], *, turned: int = 0, paper: str = "white", ink: str = "black") -> bytes:
    """A picture of some lines, as a PNG file."""
    picture = Image.new("RGB", (320, 240), paper)
    for number, line in enumerate(lines):
        ImageDraw.Draw(picture).text((30, 60 + 50 * number), line, fill=ink, font=ImageFont.load_default(20))
    file = io.BytesIO()
    picture.rotate(turned, expand=True, fillcolor=paper).save(file, "PNG")
    return file.getvalue()


def test_add_sub_and_ocr_need_no_other_files() -> None:
    with serving("add_sub", "ocr") as server:
        assert run_client(server, "add_sub")
        words = run_client(server, "ocr")
        assert "Region-based segmentation" in words
        assert "the markers are found at the two extreme parts of the" in words


@pytest.mark.usefixtures("fetched")
def test_ocr_in_its_three_forms(tmp_path: Path) -> None:
    lines = ["Invoice 4711 of November", "Boxes of paper 19.90", "Total with tax 23.68"]
    with serving(*OCR) as server, triton.InferenceServerClient(f"127.0.0.1:{server.port}", **PATIENT) as client:
        slanted = page(lines, turned=5, paper="black", ink="yellow")
        on_its_head = page(lines, turned=180)
        blank = page([])
        for model in OCR:
            assert read(client, model, slanted) == (lines, (3, 4, 2), (3,)), model
            assert read(client, model, blank) == ([], (0, 4, 2), (0,)), model
            with pytest.raises(triton.InferenceServerException, match="IMAGE is not a PNG or JPEG file") as refused:
                read(client, model, b"GIF89a")
            assert refused.value.status() == "400", model
        assert read(client, "ocr_ensemble", on_its_head)[0] != lines[::-1]
        assert read(client, "ocr_bls", on_its_head)[0] == lines[::-1]


def read(client: triton.InferenceServerClient, model: str, picture: bytes) -> tuple[list[str], Any, Any]:
    """The texts, and the shapes of boxes and scores."""
    image = triton.InferInput("IMAGE", [1], "BYTES")
    image.set_data_from_numpy(np.array([picture], np.object_))
    result = client.infer(model, [image])
    texts = [text.decode() for text in result.as_numpy("TEXT")]
    return texts, result.as_numpy("BOXES").shape, result.as_numpy("SCORES").shape


@pytest.mark.usefixtures("fetched")
def test_embeddings_are_those_of_the_network() -> None:
    texts = ["A dog runs.", "Ein längerer Satz, der mehr als sechzehn Stücke hat und darum breiter ist als der andere."]
    tokenizer = tokenizers.Tokenizer.from_file(str(REPOSITORY / "sentence_tokenizer" / "1" / "tokenizer.json"))
    session = onnxruntime.InferenceSession(str(REPOSITORY / "sentence_encoder" / "1" / "model.onnx"))
    tokenizer.no_padding()
    with (
        serving("sentence_embedding") as server,
        triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client,
    ):
        for text in texts:
            given = triton.InferInput("TEXT", [1, 1], "BYTES")
            given.set_data_from_numpy(np.array([[text.encode()]], np.object_))
            (embedding,) = client.infer("sentence_embedding", [given]).as_numpy("EMBEDDING")
            ids = np.array([tokenizer.encode(text).ids])
            inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            expected = session.run(None, inputs)[0][0].mean(0)
            # Weights of 8 bits: what is beside a sentence, padding too, changes its last digits.
            assert embedding @ expected / np.linalg.norm(expected) > 0.99
            assert abs(np.linalg.norm(embedding) - 1) < 1e-5
            body = json.dumps({"model": "sentence_embedding", "input": [text, "A cat."]}).encode()
            first, second = server.request("POST", "/v1/embeddings", body).json()["data"]
            assert np.array(first["embedding"]) @ embedding > 0.99
            assert np.array(second["embedding"]) @ embedding < 0.9


def conversation() -> Any:
    """Pieces of a real recording, 512 samples each."""
    with wave.open(str(REPOSITORY / "voice_activity" / "conversation.wav")) as opened:
        assert (opened.getframerate(), opened.getnchannels()) == (16000, 1)
        samples = np.frombuffer(opened.readframes(opened.getnframes()), "<i2")
    return (samples[: len(samples) // 512 * 512] / np.float32(32768)).reshape(-1, 512)


def network_alone(pieces: Any) -> list[float]:
    """What Silero's own code makes of pieces: it keeps the state, and 64 samples of the piece before."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(REPOSITORY / "voice_network" / "1" / "model.onnx"), options)
    state, before, found = np.zeros((2, 1, 128), np.float32), np.zeros(64, np.float32), []
    for piece in pieces:
        window = np.concatenate([before, piece])[np.newaxis]
        speech, state = session.run(None, {"input": window, "state": state, "sr": np.array(16000)})
        before = piece[-64:]
        found.append(speech.item())
    return found


def listen(server: Serving, call: int, pieces: Any) -> list[float]:
    found = []
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}", **PATIENT) as client:
        for index, piece in enumerate(pieces):
            audio = triton.InferInput("AUDIO", [512], "FP32")
            audio.set_data_from_numpy(piece)
            ends = index == len(pieces) - 1
            answer = client.infer(
                "voice_activity", [audio], sequence_id=call, sequence_start=index == 0, sequence_end=ends
            )
            found.append(answer.as_numpy("SPEECH").item())
    return found


@pytest.mark.usefixtures("fetched")
def test_voice_activity_is_that_of_the_network_and_of_people() -> None:
    """Alone and among eight callers at once, who are at different places of the recording."""
    pieces = conversation()
    shifted = [pieces[200 + 30 * caller : 350 + 30 * caller] for caller in range(8)]
    found: dict[int, list[float]] = {}
    with serving("voice_activity") as server:
        whole = listen(server, 99, pieces)
        alone = [listen(server, 1, mine) for mine in shifted]

        def call(caller: int) -> None:
            found[caller] = listen(server, 10 + caller, shifted[caller])

        threads = [threading.Thread(target=call, args=(caller,)) for caller in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    np.testing.assert_allclose(whole, network_alone(pieces), atol=1e-6)
    assert [found[caller] for caller in range(8)] == alone
    # Who speaks when, as people have heard it; of what lies within a fifth of a second of a change nobody is sure.
    times = (np.arange(len(pieces)) + 0.5) * 512 / 16000
    spoken, unsure = np.zeros(len(pieces), bool), np.zeros(len(pieces), bool)
    for line in (REPOSITORY / "voice_activity" / "conversation.rttm").read_text().splitlines():
        begins, lasts = map(float, line.split()[3:5])
        spoken |= (times >= begins) & (times < begins + lasts)
    changes = times[1:][spoken[1:] != spoken[:-1]]
    for change in changes:
        unsure |= abs(times - change) < 0.2
    heard = np.array(whole) >= 0.5
    assert not heard[~spoken & ~unsure].any()
    assert heard[spoken & ~unsure].mean() > 0.9
    assert 0.2 < spoken.mean() < 0.9


@pytest.mark.usefixtures("fetched")
def test_what_the_docs_show_is_what_is_printed() -> None:
    shown = re.findall(
        r"^```console\n\$ \.venv/bin/python (model_repository/\S+/client\.py.*)\n((?:.*\n)*?)```$", DOCS, re.M
    )
    assert len(shown) >= 5
    with Serving(REPOSITORY) as server:
        for words, output in shown:
            command = [sys.executable, *shlex.split(words), "--url", f"127.0.0.1:{server.port}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=WORK_S, cwd=ROOT)
            assert done.returncode == 0, done.stdout + done.stderr
            # Processors differ in the last digits of a similarity.
            assert rounded(done.stdout) == rounded(output), words


def rounded(output: str) -> str:
    return re.sub(r"^0\.\d\d  ", "0.xx  ", output, flags=re.M)


@pytest.mark.usefixtures("fetched")
def test_check_finds_nothing() -> None:
    assert check_repositories([REPOSITORY], Path("/nowhere")).problems == ()


def test_make_serve_without_the_registry_serves_the_rest(tmp_path: Path) -> None:
    fetched = shutil.ignore_patterns("*.onnx", "tokenizer.json", ".model_files.txt", "__pycache__")
    copied = tmp_path / "models"
    for model in ("add_sub", "sentence_embedding", "sentence_encoder", "sentence_pooling", "sentence_tokenizer"):
        shutil.copytree(REPOSITORY / model, copied / model, ignore=fetched)
    offline = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    making = Serving(copied, environment=offline)
    flags = " ".join(word for word in making.command[5:] if "-address" not in word)
    venv = Path(sys.executable).parents[1]
    # What installs the client needs the registry, and would change the environment of the other tests.
    making.command = ["make", "-C", str(ROOT), "-o", f"{venv}/.with-client", "serve"]
    making.command += [f"VENV={venv}", f"REPOSITORY={copied}", f"ARGS={flags}"]
    with making as server:
        server.wait_for("pip could not download")
        server.wait_for("Serving without the models whose files could not be fetched")
        assert server.get("/v2/health/ready").status == 200
        rows = {row["name"]: row for row in server.request("POST", "/v2/repository/index").json()}
        assert rows["add_sub"]["state"] == "READY"
        assert rows["sentence_encoder"]["state"] == "UNAVAILABLE"
        server.wait_for(re.escape(f"stubserve fetch {copied}"))
        assert run_client(server, "add_sub")


def speech(folder: Path) -> Path:
    """A WAV file with half a second of silence."""
    with wave.open(str(folder / "silence.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes(bytes(16000))
    return folder / "silence.wav"


@pytest.mark.parametrize("words", ["add_sub", "sentence_embedding hello", "voice_activity {} --callers=3"])
def test_a_client_without_a_server_says_so_in_one_line(words: str, tmp_path: Path) -> None:
    model, *rest = words.format(speech(tmp_path)).split()
    done = refused_client(model, "--url=127.0.0.1:1", *rest)
    assert done == (
        "no server answers at 127.0.0.1:1 ([Errno 111] Connection refused): start one with "
        "`stubserve serve model_repository`\n"
    )


def test_a_client_says_where_its_recording_comes_from(tmp_path: Path) -> None:
    client = Path(shutil.copy(REPOSITORY / "voice_activity" / "client.py", tmp_path))
    there_is_no = f"there is no {tmp_path}/conversation.wav: `stubserve fetch model_repository` gets it\n"
    assert refused_client(client) == there_is_no
    empty = tmp_path / "empty.wav"
    empty.touch()
    assert refused_client(client, str(empty)) == f"cannot read {empty}: it ends too early\n"


def refused_client(model: str | Path, *words: str) -> str:
    """What a client prints that ends with an error."""
    client = REPOSITORY / model / "client.py" if isinstance(model, str) else model
    done = subprocess.run([sys.executable, str(client), *words], capture_output=True, text=True, timeout=WORK_S)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


def test_two_ways_to_make_one_network_speak(fetched: None) -> None:
    """llama.cpp, and numpy with answers that join one another between two tokens: the same words of both."""
    pytest.importorskip("gguf", reason="`make examples` installs it")
    pytest.importorskip("xllamacpp", reason="`make examples` installs it")

    def ask(model: str, text: str) -> str:
        body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 5, "temperature": 0}
        answer = server.request("POST", "/v1/chat/completions", json.dumps(body).encode())
        assert answer.status == 200, answer
        content: str = answer.json()["choices"][0]["message"]["content"]
        return content

    # llama.cpp rounds more than numpy, so the two agree only where the network is sure.
    texts = ("Count from 1 to 10.", "What is 2+2?", "Repeat the word banana three times.")
    with serving("smollm2", "smollm2_numpy") as server:
        server.wait_until_ready()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            said = list(pool.map(ask, ["smollm2_numpy"] * len(texts), texts))
        assert said == [ask("smollm2", text) for text in texts]
        batches = server.statistics("smollm2_numpy")["batch_stats"]
        assert max(int(one["batch_size"]) for one in batches) == len(texts)
