"""The sequence batcher: requests that belong together run on one instance, in order (see `batcher`)."""
