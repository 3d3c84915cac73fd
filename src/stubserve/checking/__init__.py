"""What is wrong with a repository, found without serving it.

`repository` makes the checks of a load, and refuses the same things in the same words.
"""
