"""What all packages share: request, response, tensor, call, statistics, trace, admission, and long work."""
