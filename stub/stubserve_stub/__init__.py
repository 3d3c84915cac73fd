"""What runs in a model's interpreter, and the wire that it shares with the parent.

Pure Python from 3.8 on, numpy the only thing that it needs of the model's environment.
"""
