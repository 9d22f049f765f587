"""Tests of the adapters against the frameworks themselves, as their packages are, without any model."""
