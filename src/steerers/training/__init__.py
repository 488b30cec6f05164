"""Training: Setting A, a steerer for a frozen descriptor; objectives."""
