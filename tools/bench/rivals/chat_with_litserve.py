"""A model for chats behind litserve, on OpenAI's routes: `chat_with_litserve.py PORT API_SERVERS TOKENS PACE_S`.

It answers TOKENS words to any chat, a word each PACE_S seconds. `async` is what lets litserve's worker answer more
than one stream at a time.
"""

import asyncio
import sys

import litserve


class Words(litserve.LitAPI):
    def __init__(self, tokens, pace_s, **settings):
        super().__init__(**settings)
        self._tokens = tokens
        self._pace_s = pace_s

    def setup(self, device):
        pass

    async def predict(self, messages):
        for number in range(self._tokens):
            await asyncio.sleep(self._pace_s)
            yield f"w{number} "


if __name__ == "__main__":
    port, api_servers, tokens = map(int, sys.argv[1:4])
    api = Words(tokens, float(sys.argv[4]), enable_async=True, spec=litserve.OpenAISpec())
    # Its own limit of 30 s holds for waiting; with no pause between words, some streams wait longer.
    server = litserve.LitServer(api, accelerator="cpu", devices=1, workers_per_device=1, fast_queue=True, timeout=False)
    server.run(
        host="127.0.0.1",
        port=port,
        num_api_servers=api_servers,
        log_level="warning",
        access_log=False,
        generate_client_file=False,
    )
