"""The page to chat with language models on, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_server import Serving, eventually, write_model
from tests.server.openai_models import DECOUPLED, OUTPUT, text_input, write_models
from tools.browser import PROGRAM, Browser

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium or Chrome on this machine")
TOKEN = "a-token-for-the-page"
# Speaks until nobody listens
ENDLESS = """
    import os, time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.folder = args["model_repository"]

        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                while not request.is_cancelled():
                    text = pb_utils.Tensor("text_output", np.array([b"on "], object))
                    sender.send(pb_utils.InferenceResponse([text]))
                    time.sleep(0.01)
                open(os.path.join(self.folder, "cancelled"), "w").close()
                sender.send(flags=1)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "tokens").write_text(TOKEN)
    write_models(folder / "models")
    write_model(
        folder / "models", "endless", ENDLESS, f'backend: "python"\n{text_input("messages")}{OUTPUT}{DECOUPLED}'
    )
    flags = ["--openai", f"--auth-token-file={folder / 'tokens'}", "--auth-open-api=health"]
    with Serving(folder / "models", *flags) as running:
        running.wait_until_ready()
        yield running


@pytest.fixture
def browser(server: Serving, tmp_path: Path) -> Iterator[Browser]:
    """The page, with the server's token given."""
    with Browser(tmp_path / "profile") as running:
        running.open(f"http://127.0.0.1:{server.port}/chat")
        running.until("document.getElementById('access')?.open")
        running.run(f"at('token').value = '{TOKEN}'; at('token').dispatchEvent(new Event('change'))")
        running.until("document.querySelector('#model option')")
        yield running


def send(browser: Browser, model: str, text: str) -> None:
    browser.run(f"delete document.body.dataset.answered; at('model').value = {json.dumps(model)}")
    browser.run(f"at('message').value = {json.dumps(text)}; at('send').click()")


def said(browser: Browser) -> list[list[str]]:
    """The bubbles of the page: class and text of each."""
    browser.until("document.body.dataset.answered")
    shown: list[list[str]] = browser.run(
        "[...document.querySelectorAll('#said > *')].map(p => [p.className, p.textContent])"
    )
    return shown


def test_a_chat_goes_on(browser: Browser) -> None:
    """The model is told all that was said, and what a model says is text, whatever it is."""
    send(browser, "joined", "hello")
    refusal, *bubbles = said(browser)
    assert refusal[0] == "bad", "before the token was given"
    assert bubbles == [["user", "hello"], ["assistant", "user: hello assistant:"]]
    assert "first token after" in browser.run("at('took').innerText")
    evil = "<img src=x onerror=\"document.title='owned'\">"
    send(browser, "joined", evil)
    last = said(browser)[-1]
    assert last == [
        "assistant",
        f"user: hello assistant: user: hello assistant: user: {evil} assistant:".replace("\n", " "),
    ]
    assert browser.run("document.title") == "Chat with a model"
    browser.run("at('anew').click()")
    assert browser.run("at('said').children.length") == 0
    browser.run("at('system').value = 'be brief'")
    send(browser, "joined", "hi")
    assert said(browser) == [["user", "hi"], ["assistant", "system: be brief user: hi assistant:"]]


MARKDOWN = """# Title

It is **bold**, `x < 1` and [a link](https://example.org) <b>not this</b>, [nor this](javascript:alert(1))

- one
- two

```python
print("<i>")
```
![a picture](https://example.org/track.png)"""


def test_markdown_is_shown_and_html_is_not(browser: Browser) -> None:
    send(browser, "joined", MARKDOWN)
    assert said(browser)[-1][0] == "assistant"
    names = "[...document.querySelectorAll('#said > .assistant:last-child *')].map(one => one.localName)"
    found = browser.run(names)
    assert {"strong", "code", "a", "ul", "li", "pre"} <= set(found)
    assert not {"b", "i", "img", "script"} & set(found)
    links = browser.run("[...document.querySelectorAll('#said a')].map(one => one.href)")
    assert links == ["https://example.org/", "https://example.org/track.png"]
    browser.run("at('anew').click()")


def test_an_answer_that_is_stopped_ends_the_models_work(browser: Browser, server: Serving) -> None:
    send(browser, "endless", "speak")
    browser.until("document.querySelector('#said .assistant').textContent.length > 8")
    browser.run("at('stop').click()")
    assert said(browser)[-1] == ["bad", "Stopped."]
    eventually((Path(server.command[4]) / "endless" / "cancelled").exists)


def test_an_error_is_told_and_the_message_is_kept(browser: Browser) -> None:
    send(browser, "rows", "hello")
    kind, text = said(browser)[-1]
    assert kind == "bad"
    assert "'rows'" in text
    assert browser.run("at('message').value") == "hello"


def test_only_where_it_is_wanted(tmp_path: Path) -> None:
    write_models(tmp_path)
    for flags, status in ((["--openai", "--try-page=false"], 404), ([], 404), (["--openai"], 200)):
        with Serving(tmp_path, *flags) as running:
            assert running.request("GET", "/chat").status == status
