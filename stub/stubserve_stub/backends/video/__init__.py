"""The video backend: opens a source, decodes it, and streams the frames that are wanted, by PyAV."""
