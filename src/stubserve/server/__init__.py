"""The server put together: its models (`server`), its front ends and their ports, its start and its end."""
