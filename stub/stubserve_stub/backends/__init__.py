"""What a stub can run: one folder or module for each backend."""
