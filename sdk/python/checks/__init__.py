"""What can be said of the package without a sandbox."""
