"""What parties say to each other: messages, codecs, and the bytes on the wire."""
