"""Size of the dataset that the tests of the real LeRobot share: one short episode of small images."""

FRAMES, HEIGHT, WIDTH = 60, 32, 48
