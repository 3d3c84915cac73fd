"""The operator's settings, in groups: each part of the server is given its own group."""
