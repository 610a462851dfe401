"""Rules, shipped and learned."""
