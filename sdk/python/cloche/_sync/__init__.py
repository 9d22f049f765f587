"""The client without asyncio. All but primitives.py is made of _async; see tools/unasync.py."""
