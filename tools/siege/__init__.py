"""Hostile clients of every kind beside polite ones, on one server: who is starved, and what memory it costs."""
