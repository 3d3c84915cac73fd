"""The places of models: folders on disk and in the cloud, their files, agents that may replace these, the registry."""
