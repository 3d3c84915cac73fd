"""The ways in. Each translates its protocol to the vocabulary of `stubserve.inference` and back."""
