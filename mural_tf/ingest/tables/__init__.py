"""Tables of your own: understood, read, divided into splits."""
