"""The benchmark's models behind FastAPI and uvicorn: `with_fastapi.py --repository DIR --batch-from N --port P`.

Batching is what a careful user would write: one task per worker takes what waits, up to the batch size and without
waiting for more, and runs the model in a thread, so that the event loop goes on. All models share one process.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import functions
import uvicorn
from fastapi import FastAPI, Request, Response


class Batcher:
    def __init__(self, function, max_batch_size, workers):
        self._function = function
        self._max_batch_size = max_batch_size
        self._executor = ThreadPoolExecutor(workers)
        self._queue = asyncio.Queue()
        self._tasks = [asyncio.create_task(self._work()) for _ in range(workers)]

    async def submit(self, item):
        future = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((item, future))
        return await future

    async def _work(self):
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self._queue.get()]
            while len(batch) < self._max_batch_size and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            try:
                outputs = await loop.run_in_executor(self._executor, self._function, [item for item, _ in batch])
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), output in zip(batch, outputs, strict=True):
                # A client that went away has cancelled its future.
                if not future.done():
                    future.set_result(output)


def application(repository, batch_from):
    batchers = {}

    @asynccontextmanager
    async def lifespan(app):
        for route, _, function, max_batch_size, workers in functions.served(repository, batch_from):
            batchers[route] = Batcher(function, max_batch_size, workers)
        yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/health")
    async def health():
        return {"ready": True}

    def add(route, decode, encode):
        @app.post(f"/{route}")
        async def infer(request: Request) -> Response:
            output = await batchers[route].submit(decode(await request.body()))
            return Response(encode(output), media_type="application/octet-stream")

    for route, (decode, encode), *_ in functions.served(repository, batch_from):
        add(route, decode, encode)
    return app


if __name__ == "__main__":
    options = functions.arguments()
    uvicorn.run(
        application(options.repository, options.batch_from),
        host="127.0.0.1",
        port=options.port,
        loop="uvloop",
        http="httptools",
        workers=1,
        access_log=False,
        log_level="warning",
    )
