"""The onnxruntime backend, as Triton's: serves `model.onnx`, in the environment that has the package onnxruntime."""
