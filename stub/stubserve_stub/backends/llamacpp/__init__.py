"""The llamacpp backend: language models in GGUF files, by llama.cpp (the package xllamacpp)."""
