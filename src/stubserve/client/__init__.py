"""Tensors to a server on the same machine without a socket, and to any other server over it.

    import numpy as np
    from stubserve.client import Client

    with Client("http://127.0.0.1:8000") as client:
        with client.frame((1080, 1920, 3), np.uint8) as image:
            camera.read_into(image)
            boxes = client.infer("detector", {"IMAGE": image})["BOXES"]

It stands over `tritonclient` (`pip install 'tritonclient[http]'`, or `[grpc]`), and speaks Triton's extension for
system shared memory, so the server may be stubserve or Triton. Where the server has no shared memory for this client,
because it is another machine's, has it switched off, or may not open the client's files, tensors are sent. The log
(`stubserve.client`) says so once.
"""

from stubserve.client.clients import AsyncClient, Client, Statistics

__all__ = ["AsyncClient", "Client", "Statistics"]
