"""Memory of GPUs: the driver, pools of memory, and what maps the pools of other processes."""
