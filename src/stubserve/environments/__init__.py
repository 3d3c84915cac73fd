"""The Python environments that models run in: found, extracted into a cache, and explained when they do not work.

An archive is extracted by a process of its own. It can be killed, and the server goes on serving. An environment that
works is never probed: only when a stub dies before it reaches its model, its interpreter is looked at (`probe`).
"""
