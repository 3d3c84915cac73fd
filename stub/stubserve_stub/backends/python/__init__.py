"""The Python backend: a `model.py` with the class `TritonPythonModel`."""
