"""What drives a DataLoader when there is no training script: none, paced, replay, act."""
