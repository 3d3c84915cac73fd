"""The rate limiter: what instances share (`limiter`), and the queue of a model with such instances (`dispatcher`)."""
