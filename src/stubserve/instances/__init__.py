"""Model instances: their stub processes, how they are started, watched, restarted and stopped.

A model can reach the descriptors and the memory of its stub, so no data from a stub is trusted (`stub_process`). The
death of a stub is noticed at once. The requests that it was executing fail with the cause, the processes that its model
had started are ended, and a new stub is started (`death`).
"""
