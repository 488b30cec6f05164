"""Where pairs of images with known correspondences come from."""
