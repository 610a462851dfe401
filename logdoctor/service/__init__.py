"""The running service: logs are stored as they arrive, compressed, and judged when their job ends."""
