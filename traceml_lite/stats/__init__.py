"""Statistics of waiting: arrays in, numbers out. numpy and scipy only; no clock, no file, no global seed."""
