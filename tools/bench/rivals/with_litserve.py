"""The benchmark's models behind litserve: `with_litserve.py --repository DIR --batch-from N --port P --api-servers N`.

A batch waits 1 ms: with 0 litserve's worker asks its queue without a pause and keeps a core busy. Bodies come as bytes
through a FastAPI dependency; litserve's own readers know JSON and forms only.
"""

from typing import Annotated

import functions
import litserve
from fastapi import Depends, Request, Response

WAIT_S = 0.001


async def read_body(request: Request) -> bytes:
    return await request.body()


class Served(litserve.LitAPI):
    def __init__(self, route, codec, function, max_batch_size):
        # A wait is only accepted together with batches.
        super().__init__(
            api_path=f"/{route}", max_batch_size=max_batch_size, batch_timeout=WAIT_S if max_batch_size > 1 else 0.0
        )
        self._decode, self._encode = codec
        self._function = function

    def setup(self, device):
        pass

    def decode_request(self, request: Annotated[bytes, Depends(read_body)]):
        return self._decode(request)

    def batch(self, inputs):
        return inputs

    def predict(self, x):
        return self._function(x) if self.max_batch_size > 1 else self._function([x])[0]

    def unbatch(self, output):
        return output

    def encode_response(self, output) -> Response:
        return Response(self._encode(output), media_type="application/octet-stream")


if __name__ == "__main__":
    options = functions.arguments()
    served = list(functions.served(options.repository, options.batch_from))
    server = litserve.LitServer(
        [Served(*route[:4]) for route in served],
        accelerator="cpu",
        devices=1,
        workers_per_device={f"/{route[0]}": route[4] for route in served},
        fast_queue=True,
    )
    server.run(
        host="127.0.0.1",
        port=options.port,
        num_api_servers=options.api_servers,
        log_level="warning",
        access_log=False,
        generate_client_file=False,
    )
