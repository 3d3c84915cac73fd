"""The classes and functions of `pb_utils`, and nothing else: what a model sees."""
