"""What drives a DataLoader when there is no training script, and where such loaders come from.

`parse` and `drive` are the consumers, `targets` turns a word of the command line into a loader, `demos`
holds the built-in workloads. Nothing here measures: the probe does.
"""
