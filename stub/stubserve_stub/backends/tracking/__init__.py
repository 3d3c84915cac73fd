"""The tracking backend: boxes of one frame after the other become tracks with identities."""
