"""The rate limiter: what instances share (`limiter`), and the queue of a model whose instances do (`dispatcher`)."""
