"""The Python API: record, load, summarize, diagnose. Each is a thin door to the layer that does the work."""
