"""Kills, stops, reloads and vanishing clients: every success is right, every request ends, nothing stays behind."""
