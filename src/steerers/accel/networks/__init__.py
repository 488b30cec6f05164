"""Networks in their form for inference."""
