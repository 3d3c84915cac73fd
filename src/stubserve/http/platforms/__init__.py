"""The routes of SageMaker and Vertex AI: those of HTTP under other names."""
