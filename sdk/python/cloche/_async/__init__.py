"""The client for asyncio, of which the one without is made; see tools/unasync.py."""
