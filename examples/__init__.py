"""Programs that show tfdist at work."""
