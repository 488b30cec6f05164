"""Networks in their form for inference; :func:`for_inference` is how the models come here."""

from steerers.accel.networks.inference import for_inference, is_fast

__all__ = ["for_inference", "is_fast"]
