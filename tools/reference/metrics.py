"""The page of metrics, read from what a server prints about a model that has all of them."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

from stubserve.inference.latencies import Latencies
from stubserve.inference.long_work import finish
from stubserve.inference.served_model import InstanceFacts
from stubserve.inference.statistics import ModelStatistics
from stubserve.inference.token_counts import TokenCounts
from stubserve.model_config.proto import ModelConfig
from stubserve.observability.custom_metrics import MetricRegistry
from stubserve.observability.families import RESERVED
from stubserve.observability.metrics import MachineMetrics, ServerMetrics
from stubserve.parts import Sample
from stubserve.settings.groups import LatencySettings
from tools.reference.markdown import name as whole
from tools.reference.markdown import table

_HEAD = """\
# Metrics

`GET /metrics` on the metrics port (8002) answers in Prometheus' text format. The names are Triton's, so that its dashboards
work; those that begin with `stubserve_` are of stubserve's own. What is printed is counted anyway: a scrape costs requests nothing.

Each metric of a model has the labels `model` and `version`, and one for each of the configuration's `metric_tags`, with an underscore in front.
`nv_inference_request_failure` has `reason` as well: `REJECTED` (the queue was full, or the request waited too long), `CANCELED` (the
client has gone), `BACKEND` (the model failed) or `OTHER`.

Counters only grow while a model is loaded. A mean is the quotient of two differences: of `nv_inference_queue_duration_us` over that of
`nv_inference_request_success` is the mean time, in microseconds, that a request waited in the queue.

"""
_TAIL = """\
## Metrics of your own

A model makes them with [`pb_utils.MetricFamily`](pb_utils.md#metricfamily), and they are printed behind these.

## More, or less

`--metrics-config=histogram_latencies=true` adds the histogram of first responses, `--metrics-config=summary_latencies=true` the summaries, with the quantiles of
`--metrics-config=summary_quantiles=0.5:0.05,0.99:0.001`. `--metrics-config=counter_latencies=false` takes the counters of durations away.
Buckets of a histogram are the model's to say, in `model_metrics` of its configuration.
"""
_WHERE = {
    "Models": lambda name: name.startswith(("nv_inference", "nv_model")),
    "Language models behind OpenAI's routes": lambda name: name.startswith("vllm:"),
    "The response cache": lambda name: name.startswith("nv_cache"),
    "Instances, batches and shared memory": lambda name: name.startswith("stubserve_"),
    "The machine": lambda name: name.startswith(("nv_cpu", "nv_gpu", "nv_energy", "nv_pinned")),
}


def metrics_page() -> str:
    """The page as Markdown."""
    families = re.findall(r"^# HELP (\S+) (.*)\n# TYPE \S+ (\S+)$", _printed(), re.MULTILINE)
    parts = [_HEAD]
    for title, belongs in _WHERE.items():
        rows = [(whole(name), kind, text.rstrip(".") + ".") for name, text, kind in families if belongs(name)]
        parts += [f"## {title}\n\n", table(("name", "kind", "what it says"), rows)]
    return "".join([*parts, _TAIL])


def _printed() -> str:
    """What a server prints that has one model, and measures everything."""
    latencies = Latencies([100, 500], summaries=True)
    # One that uses the cache has no summary of its requests' times; all that there is shall be printed.
    times = dict(latencies.summaries)
    latencies.uses_cache()
    latencies.summaries = times
    statistics = ModelStatistics()
    statistics.cached = True
    statistics.tokens = TokenCounts()
    statistics.tokens.add(0, 0, 0)
    model: Any = SimpleNamespace(
        name="model",
        namespace="",
        version=1,
        config=ModelConfig(),
        statistics=statistics,
        latencies=latencies,
        queued=0,
        under_way=0,
        load_seconds=0.0,
        instance_facts=lambda: [InstanceFacts("model_0_0", "ready")],
    )
    everything = LatencySettings(histogram_latencies=True, summary_latencies=True)
    memory: Any = SimpleNamespace(limit=0, held=lambda: dict.fromkeys(("requests", "heap", "stubs"), 0))
    # The last ones that the table of families has
    server = list(RESERVED)[list(RESERVED).index("stubserve_memory_pressure") :]
    of_gpus = [name for name in RESERVED if name.startswith("nv_gpu") or name == "nv_energy_consumption"]
    of_cache = [name for name in RESERVED if name.startswith("nv_cache") and not name.endswith("per_model")]
    samples: list[Sample] = [(name, (), 0.0) for name in (*server, *of_cache)]
    samples += [(name, (("gpu_uuid", "GPU-..."),), 0.0) for name in of_gpus]
    text = ServerMetrics(
        lambda: [cast(Any, model)],
        everything,
        MachineMetrics(2.0, True),
        MetricRegistry(RESERVED),
        memory,
        lambda: samples,
    ).text()
    return finish(text)
