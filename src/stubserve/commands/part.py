"""The tools as a part of the server: it tells people the commands that ask a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from stubserve.inference.served_model import ServedModel
from stubserve.parts import Part


class Tools(Part):
    def addresses(self, http: str, metrics: str, models: Sequence[ServedModel]) -> Mapping[str, str]:
        if not (http and models):
            return {}
        from stubserve.commands.model_inputs import DEFAULT_URL, command_line, curl_line, inputs_of
        from stubserve.model_config.render import model_metadata, render_json

        model = models[0]
        inputs = inputs_of(model_metadata(model.config, []), json.loads(render_json(model.config)))
        ways = {"Ask": command_line(model.name, inputs, http if http != DEFAULT_URL else "")}
        curl = "" if model.signature.decoupled else curl_line(model.name, inputs, http)
        return {**ways, "Curl": curl} if curl else ways


PART = Tools
