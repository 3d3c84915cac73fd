"""A model.py in a plain test function: loaded and executed in the test's own process, without a server.

    from stubserve import testing

    def test_add_sub():
        with testing.load("model_repository/add_sub") as model:
            outputs = model.infer(INPUT0=[[1, 2, 3]], INPUT1=[[3, 2, 1]])
        assert outputs["SUM"].tolist() == [[4, 4, 4]]

Configuration, admission of requests, import, batches, senders and responses are the server's and the stub's own code.
Only the transport between them differs: tensors are copied instead of shared, and there is no scheduler.

`serve` starts a real server, for tests of what `load` does not have: ensembles, other backends than Python, schedulers.
"""

from stubserve.testing.loading import load
from stubserve.testing.model import Answer, LoadedModel, ModelError
from stubserve.testing.request import Request
from stubserve.testing.serving import Server, serve

__all__ = ["Answer", "LoadedModel", "ModelError", "Request", "Server", "load", "serve"]
