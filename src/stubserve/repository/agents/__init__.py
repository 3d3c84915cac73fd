"""Repository agents: programs that check a model's files before a load, and may replace them.

An agent in Python has one process for all models, with a thread for each hook, so none of its code runs in the server.
A load of an unchanged model calls no agent.
"""
