"""HTTP: KServe v2 on uvicorn.

`connection` is a uvicorn protocol class that serves the inference routes itself. All other routes go to the Starlette
app in `app`, which can also serve inference, as plain ASGI.
"""
