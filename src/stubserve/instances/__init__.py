"""Model instances: their stub processes, how they are started, watched, restarted and stopped.

A model can reach the descriptors and the memory of its stub, so nothing that comes from a stub is trusted
(`stub_process`). The death of a stub is noticed at once. The requests that it was executing fail with the cause, what
its model had started is ended, and a new stub is started (`death`).
"""
