"""Repository agents: programs that look at a model's files before it is loaded, and may put others in their place.

An agent in Python has one process for all models, with a thread for each hook, so none of its code runs in the server.
A load of what has not changed asks no agent.
"""
