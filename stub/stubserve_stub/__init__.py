"""What runs in a model's interpreter, and the wire that it shares with the parent.

It is pure Python from 3.8 on, and needs only numpy of the model's environment.
"""
