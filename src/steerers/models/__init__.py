"""Models: networks and classical features behind one protocol."""
