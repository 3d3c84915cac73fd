"""What backends share that load a file of a model: its configuration read, its package found, the file looked at."""
