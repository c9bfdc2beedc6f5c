"""Encodings, one file each; ``base`` says where position can enter."""
