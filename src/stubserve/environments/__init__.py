"""The Python environments that models run in: built, found, extracted into a cache, and explained when they fail.

A process of its own extracts an archive. It can be killed, and the server goes on serving. A working environment is
never probed: its interpreter is checked only when a stub dies before it reaches its model (`probe`).
"""
