"""The places of models: folders on disk and in the cloud, their contents, and the registry of loaded models."""
