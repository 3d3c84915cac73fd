"""The Python environments that models run in: found, extracted into a cache, and explained when they do not work."""
