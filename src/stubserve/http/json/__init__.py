"""JSON as upstream reads and writes it: values, tensors' data, texts, and a process of its own for what is large."""
