"""The DataLoader as a discrete-event model: replay of a trace, what-if, labelled made-up runs."""
