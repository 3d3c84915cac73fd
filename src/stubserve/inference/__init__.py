"""The vocabulary that everybody shares: request, response, tensor, call, statistics, admission, and long work."""
