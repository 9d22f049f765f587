"""What a client may rely on, with whatever daemon CLOCHE_HOST names."""
