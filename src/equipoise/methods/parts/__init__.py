"""What several methods are built of, or what would make one method too long; no method itself."""
