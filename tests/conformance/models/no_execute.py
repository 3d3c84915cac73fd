"""Lacks the one method a model must have; that is only noticed by a request."""


class TritonPythonModel:
    def initialize(self, args):
        pass
