"""The vocabulary that everybody shares: request, response, tensor, memory, statistics, and the checks on admission."""
