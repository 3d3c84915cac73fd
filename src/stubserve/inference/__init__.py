"""The words that all rooms share: request, response, tensor, call, statistics, admission, and long work."""
