"""What a stub can run: the interface (`base`), the backends by name (`find`), and each backend."""
