"""Context-extension schemes, one file each: how trained frequencies change to serve a longer input."""
