"""The whole server: its models (`server`), its front ends and their ports, its start and its end."""
