"""Model instances: their stub processes, how they are started, watched, restarted and stopped."""
