"""Shortage of the machine's memory: heard from the kernel (`watch`), told by the log and by a metric."""
