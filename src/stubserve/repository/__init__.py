"""Where models lie: folders on disk and in the cloud, what is in them, and the registry of those that are loaded."""
