"""The benchmark's models behind mosec: `with_mosec.py --repository DIR --batch-from N --port P [mosec's]`.

Batches of several requests need a wait of at least 1 ms (0 means the default of 10), so that is what they get.
"""

import functions
from mosec import Server, Worker

WAIT_MS = 1


class Floats(Worker):
    resp_mime_type = "application/octet-stream"
    deserialize = staticmethod(functions.decode_floats)
    serialize = staticmethod(functions.encode_floats)

    def forward(self, data):
        return functions.identity(data)


class SingleFloats(Floats):
    def forward(self, data):
        return functions.identity([data])[0]


class SleepingFloats(Floats):
    def forward(self, data):
        return functions.sleep_2ms(data)


class Json(Floats):
    resp_mime_type = "application/json"
    deserialize = staticmethod(functions.decode_json)
    serialize = staticmethod(functions.encode_json)


class SingleJson(Json):
    forward = SingleFloats.forward


class Strings(Floats):
    resp_mime_type = "application/msgpack"
    deserialize = staticmethod(functions.decode_strings)
    serialize = staticmethod(functions.encode_strings)


class SingleStrings(Strings):
    forward = SingleFloats.forward


def worker_of(codec, function, batched):
    """mosec sends a worker's class to its process by name, so each kind is a class of this module."""
    if function is functions.sleep_2ms:
        return SleepingFloats
    kinds = {
        functions.FLOATS: (SingleFloats, Floats),
        functions.JSON: (SingleJson, Json),
        functions.STRINGS: (SingleStrings, Strings),
    }
    return kinds[codec][batched]


if __name__ == "__main__":
    options = functions.arguments()
    server = Server()
    for route, codec, function, max_batch_size, workers in functions.served(options.repository, options.batch_from):
        server.append_worker(
            worker_of(codec, function, max_batch_size > 1),
            num=workers,
            max_batch_size=max_batch_size,
            max_wait_time=WAIT_MS,
            route=f"/{route}",
        )
    server.run()
