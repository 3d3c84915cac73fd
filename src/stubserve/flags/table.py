"""All flags that have an effect, and the groups in which people are shown them."""

from stubserve.flags.flag import Flag
from stubserve.flags.own import OWN
from stubserve.flags.upstream import UPSTREAM

FLAGS = (*UPSTREAM, *OWN)

# The groups of settings, in the order of the help and of the page. What belongs to none is about the server as a whole.
GROUPS = {
    "": "The server",
    "repository": "Models",
    "instances": "Instances and their stubs",
    "http": "HTTP",
    "grpc": "gRPC",
    "clients": "What a client may take",
    "auth": "Who may ask",
    "metrics": "Metrics",
    "sagemaker": "SageMaker",
    "vertex": "Vertex AI",
    "cache": "Response cache",
    "rate_limit": "Rate limiter",
    "logging": "Log",
    "tracing": "Traces",
}


def group_of(flag: Flag) -> str:
    """The group of a flag: a key of GROUPS."""
    return flag.setting.rpartition(".")[0]
