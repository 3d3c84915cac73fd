"""`stubserve ask MODEL NAME=VALUE...`: asks a model that a server serves, or shows the model's inputs."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import IO, Any
from urllib.parse import quote

import numpy as np
from stubserve_stub.wire import strings
from stubserve_stub.wire.datatypes import BY_NAME, shape_text

from stubserve.commands.model_inputs import (
    DEFAULT_URL,
    InputTensor,
    ModelInput,
    WrongInput,
    command_line,
    inputs_of,
    read,
)

# Longer arrays and texts are shown without their middle: elements, characters
_ELEMENTS = 60
_CHARACTERS = 400

Arrays = list[tuple[str, str, Any]]


class NoAnswer(Exception):
    """There is no answer; the text says why. `status` is HTTP's, 0 without one."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


def run(words: Sequence[str]) -> int:
    """Prints the answer; 1 if there is none, else 0."""
    parser = argparse.ArgumentParser(
        prog="stubserve ask",
        description="Asks a model over HTTP and prints what it answers. Without inputs it prints what the model takes. "
        "A value is a number or a list in JSON, a text, @FILE for the bytes of a file, or @FILE.npy for an array.",
    )
    parser.add_argument("model", metavar="MODEL", help="the model's name")
    parser.add_argument(
        "inputs", metavar="NAME=VALUE", nargs="*", default=[], help="X='[1,2,3]', TEXT=hello, IMAGE=@page.png"
    )
    parser.add_argument("--url", help=f"where the server is (the variable STUBSERVE_URL, or {DEFAULT_URL})")
    parser.add_argument("--token", help="a token that the server knows (the variable STUBSERVE_TOKEN)")
    parser.add_argument("--version", default="", help="the model's version (the one that the server chooses)")
    parser.add_argument("--json", action="store_true", help="print the whole answer as JSON")
    options = parser.parse_intermixed_args(words)
    url = options.url or os.environ.get("STUBSERVE_URL", DEFAULT_URL)
    server = _Server(url, options.token or os.environ.get("STUBSERVE_TOKEN", ""))
    try:
        _ask(server, options)
    except (NoAnswer, WrongInput) as error:
        print(f"error: {_printable(' '.join(str(error).split()))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


class _Server:
    def __init__(self, url: str, token: str) -> None:
        self.url = (url if "://" in url else f"http://{url}").rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def open(self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Any:
        """The answer, not yet read. Raises NoAnswer."""
        try:
            if not self.url.startswith(("http://", "https://")):
                raise ValueError("it begins with neither http:// nor https://")
            request = urllib.request.Request(self.url + path, body, {**self._headers, **(headers or {})})
            return urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            raise NoAnswer(_refusal(error, self.url), error.code) from None
        except OSError as error:
            raise NoAnswer(self._why_not(getattr(error, "reason", error))) from None
        except (ValueError, http.client.HTTPException) as error:
            raise NoAnswer(f"'{self.url}' is not the address of a server over HTTP: {error}") from None

    def _why_not(self, reason: object) -> str:
        """Why there is no answer, and what to do: a server that is there is told from none."""
        if isinstance(reason, ssl.SSLCertVerificationError):
            authority = "the variable SSL_CERT_FILE names its authority's file"
            advice = "--url has to name the server as its certificate does" if _is_about_a_name(reason) else authority
            return f"the certificate of {self.url} is not trusted ({reason.verify_message}): {advice}"
        if isinstance(reason, ssl.SSLError):
            return (
                f"the server at {self.url} refuses TLS ({reason.reason}): without TLS its address begins with http://"
            )
        if isinstance(reason, ConnectionResetError):
            is_tls = self.url.startswith("https://")
            advice = (
                "it may want a client's certificate" if is_tls else "if it has TLS, its address begins with https://"
            )
            return f"the server at {self.url} closes the connection: {advice}"
        advice = f"start one with 'stubserve serve', or say with --url where it is (without it: {DEFAULT_URL})"
        return f"no server answers at {self.url} ({reason}): {advice}"

    def document(self, path: str, body: bytes | None = None) -> Any:
        """The JSON of an answer. Raises NoAnswer."""
        try:
            with self.open(path, body) as answer:
                return json.load(answer)
        except (ValueError, OSError, http.client.HTTPException):
            raise NoAnswer(f"what answers at {self.url} is no inference server") from None


def _is_about_a_name(error: ssl.SSLCertVerificationError) -> bool:
    """Whether the certificate is one of another host or address, by OpenSSL's numbers."""
    return error.verify_code in (62, 64)


def _refusal(error: urllib.error.HTTPError, url: str) -> str:
    try:
        with error:
            # An event, if a stream was asked for
            return str(json.loads(error.read().removeprefix(b"data:"))["error"])
    except (ValueError, LookupError, TypeError, OSError):
        return f"what answers at {url} is no inference server: {error}"


def _ask(server: _Server, options: argparse.Namespace) -> None:
    path = f"/v2/models/{quote(options.model, safe='')}"
    if options.version:
        path += f"/versions/{quote(options.version, safe='')}"
    try:
        metadata = server.document(path)
    except NoAnswer as error:
        raise (_unknown(server, options.model) if error.status == 404 else None) or error from None
    if not (isinstance(metadata, dict) and "inputs" in metadata):
        raise NoAnswer(f"what answers at {server.url} is no inference server")
    try:
        config = server.document(f"{path}/config")
    except NoAnswer:
        # The configuration is an extension of the protocol, for which the token may not be good.
        config = {}
    inputs = inputs_of(metadata, config)
    if not options.inputs:
        if options.json:
            print(json.dumps(metadata))
        else:
            _describe(metadata, config, inputs, options.url)
        return
    tensors = read(options.inputs, options.model, inputs)
    if config.get("model_transaction_policy", {}).get("decoupled"):
        for document in _streamed(server, path, tensors):
            if options.json:
                print(json.dumps(document), flush=True)
            else:
                for output in metadata.get("outputs", ()):
                    if output["name"] in document:
                        text = _cut(json.dumps(document[output["name"]], ensure_ascii=False))
                        print(f"{output['name']} {output['datatype']}: {text}", flush=True)
        return
    document, arrays = _inferred(server, path, tensors)
    if options.json:
        print(json.dumps(_as_json(document, arrays)))
        return
    for name, datatype, array in arrays:
        text = _text(array)
        print(f"{name} {datatype} {shape_text(array.shape)}:", text, sep="\n" if "\n" in text else " ")


def _unknown(server: _Server, model: str) -> NoAnswer | None:
    """The error for a model that the server does not have; None if it has it, or does not list its models."""
    try:
        states = {one["name"]: one for one in server.document("/v2/repository/index", b"{}")}
    except NoAnswer:
        return None
    if model in states:
        reason = states[model].get("reason", "")
        return NoAnswer(f"model '{model}' does not serve: {reason}") if reason else None
    meant = get_close_matches(model, states, 1)
    advice = f"Did you mean '{meant[0]}'? " if meant else ""
    return NoAnswer(f"there is no model '{model}'. {advice}The server has: {', '.join(sorted(states)) or 'none'}")


def _describe(metadata: dict[str, Any], config: dict[str, Any], inputs: list[ModelInput], url: str | None) -> None:
    """Prints a model's inputs and outputs, and a command line to copy."""
    if not inputs and not metadata.get("outputs"):
        print(f"{metadata['name']} declares no inputs or outputs, in config.pbtxt or by auto_complete_config.")
        return
    print(f"{metadata['name']} takes")
    for wanted in inputs:
        print(f"  {wanted}")
    print("and gives")
    for one in metadata.get("outputs", ()):
        print(f"  {one['name']} ({one['datatype']} {shape_text(one['shape'])})")
    if int(config.get("max_batch_size", 0)) > 0:
        print(f"The first dimension counts rows, {config['max_batch_size']} at most; a single row needs none.")
    print(f"\n{command_line(metadata['name'], inputs, url or '')}")


# The usual way: tensors in the protocol's binary form, which has all types and texts


def _inferred(server: _Server, path: str, tensors: list[InputTensor]) -> tuple[dict[str, Any], Arrays]:
    """The answer's document, and its outputs: name, datatype and array. Raises NoAnswer."""
    parts = [tensor.raw() for tensor in tensors]
    inputs = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.array.shape),
            "parameters": {"binary_data_size": len(part)},
        }
        for tensor, part in zip(tensors, parts, strict=True)
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    try:
        with server.open(f"{path}/infer", b"".join([head, *parts]), headers) as answer:
            body = answer.read()
            length = int(answer.headers.get("Inference-Header-Content-Length") or len(body))
        document = json.loads(body[:length])
        return document, list(_arrays(document, body[length:]))
    except (ValueError, LookupError, OSError, http.client.HTTPException) as error:
        raise NoAnswer(f"the answer cannot be read: {error}") from None


def _arrays(document: dict[str, Any], data: bytes) -> Iterator[tuple[str, str, Any]]:
    at = 0
    for output in document.get("outputs", ()):
        size = output.get("parameters", {}).get("binary_data_size")
        datatype = output["datatype"]
        if size is None:
            array = np.array(output["data"], object if datatype == "BYTES" else None)
        else:
            array = _array(datatype, data[at : at + size])
            at += size
        yield output["name"], datatype, array.reshape(output["shape"])


def _array(datatype: str, data: bytes) -> Any:
    if datatype == "BYTES":
        return np.array([*strings.split(data), None], object)[:-1]
    if datatype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, BY_NAME[datatype].numpy)


def _as_json(document: dict[str, Any], arrays: Arrays) -> dict[str, Any]:
    """The answer as the server would write it in JSON alone."""
    for output, (_, datatype, array) in zip(document.get("outputs", ()), arrays, strict=True):
        parameters = output.pop("parameters", {})
        parameters.pop("binary_data_size", None)
        if parameters:
            output["parameters"] = parameters
        output["data"] = [_decoded(one) for one in array.flat] if datatype == "BYTES" else array.ravel().tolist()
    return document


def _decoded(element: Any) -> str:
    return element.decode(errors="backslashreplace") if isinstance(element, bytes) else str(element)


def _text(array: Any) -> str:
    """An array for people; a long array is cut in the middle."""
    width = shutil.get_terminal_size().columns
    with np.printoptions(threshold=_ELEMENTS, linewidth=width, formatter={"object": _element}):
        return np.array2string(array, separator=", ")


def _element(element: Any) -> str:
    try:
        return _cut(json.dumps(element.decode() if isinstance(element, bytes) else element, ensure_ascii=False))
    except UnicodeDecodeError:
        return f"<{len(element)} bytes, {element[:8].hex(' ')} …>"


def _printable(text: str) -> str:
    """The text with escapes for characters that could command the terminal."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _cut(text: str) -> str:
    text = _printable(text)
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS // 2]} … {text[-_CHARACTERS // 2 :]}"


# A decoupled model: events of generate_stream


def _streamed(server: _Server, path: str, tensors: list[InputTensor]) -> Iterator[dict[str, Any]]:
    """The documents of the events as they come. Raises NoAnswer."""
    body = json.dumps({tensor.name: _value(tensor) for tensor in tensors}, allow_nan=False).encode()
    answer: IO[bytes]
    try:
        with server.open(f"{path}/generate_stream", body, {"Content-Type": "application/json"}) as answer:
            for line in answer:
                if line.startswith(b"data:"):
                    document = json.loads(line[len(b"data:") :])
                    if "error" in document:
                        raise NoAnswer(str(document["error"]))
                    yield document
    except (ValueError, OSError, http.client.HTTPException) as error:
        raise NoAnswer(f"the answer cannot be read: {error}") from None


def _value(tensor: InputTensor) -> Any:
    """A tensor as `generate` takes it: one element, a flat list if the shape follows from it, else nested lists."""
    why = ""
    array = tensor.array
    if tensor.datatype in ("FP16", "BF16"):
        why = f"{tensor.datatype} has no form in JSON"
    elif tensor.datatype == "BYTES":
        try:
            array = np.vectorize(bytes.decode, otypes=[object])(array)
        except UnicodeDecodeError:
            why = "its bytes are no text in UTF-8"
    elif array.dtype.kind == "f" and not np.isfinite(array).all():
        why = "JSON has neither infinity nor NaN"
    if why:
        text = f"the model is decoupled, and input '{tensor.name}' cannot be streamed over HTTP"
        raise WrongInput(f"{text}: {why}; ask it over gRPC")
    if array.size == 1:
        return array.item()
    return array.ravel().tolist() if array.size == array.shape[-1] else array.tolist()
