"""OpenAI's routes as a part of the server: on the port of HTTP (`--openai`), or on their own (`--openai-port`).

Tokens of a model that these routes can serve are counted, and its chat template is read, whether they are on or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stubserve_stub.wire.datatypes import BYTES

from stubserve.errors import ServeError
from stubserve.inference.served_model import ServedModel
from stubserve.inference.token_counts import TokenCounts
from stubserve.parts import Part, Port

if TYPE_CHECKING:
    from starlette.routing import Route
    from starlette.types import ASGIApp

    from stubserve.http.access import HttpAccess

# The parameter of a model's configuration that says which routes serve it
PARAMETER = "OPENAI_ROUTES"


class OpenAi(Part):
    @staticmethod
    def problems(config: Any) -> Iterable[ServeError]:
        if PARAMETER in config.parameters:
            from stubserve.http.openai.use import openai_use

            try:
                openai_use(config)
            except ServeError as error:
                yield error

    async def load(self, model: ServedModel, folder: Path) -> None:
        if all(tensor.data_type != BYTES for tensor in model.config.input):
            return
        from stubserve.http.openai.model_template import read_chat_template
        from stubserve.http.openai.use import CHAT_TEMPLATE, TEXT, openai_use

        use = openai_use(model.config)
        if use.chat or use.completions or use.embeddings:
            model.statistics.tokens = TokenCounts()
        if use.completions == TEXT:
            folders = [folder / str(model.version), folder]
            if self.settings.instances.tokenizer is not None:
                folders.append(self.settings.instances.tokenizer)
            found = await asyncio.to_thread(read_chat_template, model.name, folders)
            model.signature.memo[CHAT_TEMPLATE] = found

    def routes(self, server: Any) -> Iterable[Route]:
        if self.settings.http.openai:
            from stubserve.http.openai.routes import routes

            yield from routes(server, False, self._metrics(server))

    def ports(self, server: Any) -> Iterable[Port]:
        http = self.settings.http
        if http.openai_port is not None:
            from stubserve.http.access import http_access

            required = {kind: one for group in http.openai_restrictions for kind, one in group.items()}
            restricted = {**http.restricted, **required}
            access = http_access(restricted, server.tokens, self.settings.auth.open_kinds, server.owner)
            make = lambda: self._app(server, access)  # noqa: E731
            yield Port("OpenAI HTTPService", "openai", http.openai_port, make, True, access)

    def hint(self, path: str) -> str:
        if (path == "/chat" or path.startswith("/v1/")) and not self.settings.http.openai:
            return "OpenAI's routes are served on this port with --openai"
        if path in ("/models", "/completions", "/embeddings", "/chat/completions"):
            return f"did you mean /v1{path}? The base URL of a client for OpenAI's protocol ends with /v1"
        return ""

    def _app(self, server: Any, access: HttpAccess | None) -> ASGIApp:
        """The app of their own port, where they answer as Triton's own front end for OpenAI's protocol."""
        from stubserve.http.app import create_app
        from stubserve.http.openai.routes import routes

        rows = routes(server, True, self._metrics(server), access)
        return create_app(server, routes=rows, cors_origins=self.settings.http.cors_origins, access=access)

    def _metrics(self, server: Any) -> Callable[[], Awaitable[str]] | None:
        """Gives the current metrics; None where they are off, or meant for an address that HTTP is not served at."""
        settings = self.settings
        if not settings.metrics.allow or settings.metrics.address != settings.http.address:
            return None
        return lambda: server.offload.run(server.metrics.text())


PART = OpenAi
