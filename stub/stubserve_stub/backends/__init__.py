"""What a stub can run: the interface (`base`), the cards of all backends (`card`, `cards`), and each backend."""
