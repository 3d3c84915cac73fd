"""Pages for people as a part of the server.

They are `/try` and `/chat` (`--try-page`), the models as OpenAPI and `/docs` (`--openapi`), and the status
(`--status-page`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stubserve.inference.served_model import ServedModel
from stubserve.parts import MetricsPage, Part

if TYPE_CHECKING:
    from starlette.routing import Route


class Pages(Part):
    def routes(self, server: Any) -> Iterable[Route]:
        http = self.settings.http
        if http.shows_openapi:
            from stubserve.http.pages.routes import openapi_routes

            yield from openapi_routes(server)
        if http.shows_try_page:
            from stubserve.http.pages.routes import try_routes

            yield from try_routes(with_chat=http.openai)

    def metrics_pages(self, server: Any) -> Iterable[MetricsPage]:
        if self.settings.metrics.status_page:
            from stubserve.http.pages.routes import status_pages

            yield from status_pages(server)

    def hint(self, path: str) -> str:
        if path in ("/docs", "/v2/openapi.json"):
            if not self.settings.http.shows_openapi:
                return "it is served with --openapi, or where only this machine reaches the port: --host=127.0.0.1"
            return "this page needs a package: run `pip install swagger-ui-py`"
        if path in ("/try", "/chat") and not self.settings.http.shows_try_page:
            return "this page is served with --try-page, or where only this machine reaches the port: --host=127.0.0.1"
        return ""

    def addresses(self, http: str, metrics: str, models: Sequence[ServedModel]) -> Mapping[str, str]:
        found = {}
        if http and self.settings.http.shows_try_page:
            found["Try"] = f"{http}/try"
            if self.settings.http.openai:
                found["Chat"] = f"{http}/chat"
        if metrics and self.settings.metrics.status_page:
            found["Status"] = f"{metrics}/"
        return found


PART = Pages
