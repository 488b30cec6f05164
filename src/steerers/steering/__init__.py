"""Steerers and the representations that they are made of."""
