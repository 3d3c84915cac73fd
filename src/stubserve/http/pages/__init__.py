"""Pages for people, each of which is one file, and the data that they show: `/try` and `/chat`, and the status page."""
