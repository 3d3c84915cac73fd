"""The routes of SageMaker and Vertex AI as a part of the server: a port for each of the two."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from stubserve.parts import Part, Port

if TYPE_CHECKING:
    from starlette.types import ASGIApp


class Platforms(Part):
    def ports(self, server: Any) -> Iterable[Port]:
        sagemaker, vertex = self.settings.sagemaker, self.settings.vertex
        if sagemaker.allow:
            yield Port("Sagemaker HTTPService", "sagemaker", sagemaker.port, lambda: self._sagemaker(server))
        if vertex.allow:
            yield Port("Vertex AI HTTPService", "vertex-ai", vertex.port, lambda: self._vertex(server))

    def _sagemaker(self, server: Any) -> ASGIApp:
        from stubserve.http.app import create_app
        from stubserve.http.platforms.sagemaker import SageMaker

        return SageMaker(server, server.control, create_app(server), server.http_access, os.environ)

    def _vertex(self, server: Any) -> ASGIApp:
        """Raises ServeError if the environment lacks a variable."""
        from stubserve.http.app import create_app
        from stubserve.http.metrics import create_metrics_app
        from stubserve.http.platforms.vertex import VertexAi

        settings = self.settings
        metrics = create_metrics_app(server) if settings.metrics.allow else None
        return VertexAi(server, create_app(server), metrics, settings.vertex.default_model, os.environ)


PART = Platforms
