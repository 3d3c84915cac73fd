"""HTTP: KServe v2 on uvicorn.

`connection` is a uvicorn protocol class that handles the inference routes itself; every other route goes to the
Starlette app in `app`, which can also serve inference, as plain ASGI.
"""
