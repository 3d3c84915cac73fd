"""The pytorch backend, as Triton's: TorchScript, exported programs and modules in Python, where torch is installed."""
