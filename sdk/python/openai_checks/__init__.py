"""Tests of the provider for the OpenAI Agents SDK. They need a daemon: set CLOCHE_HOST."""
