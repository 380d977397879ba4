"""WHAT a workflow is: executors, edges and the immutable graph they form. No asyncio, no I/O."""
