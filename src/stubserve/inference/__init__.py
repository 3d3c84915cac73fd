"""The vocabulary that everybody shares: request, response, tensor, statistics, and the checks on admission."""
