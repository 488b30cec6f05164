"""Images: decoding, masks, resizing, reading ahead."""
