"""Maps: where a photograph was taken, by what it shows."""
