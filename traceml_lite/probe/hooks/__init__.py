"""One file per shape of torch's DataLoader; ``choose`` picks by shape, never by version alone."""
