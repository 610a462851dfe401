"""Logs while they are written: bytes in, durable, compressed as they come, judged when the job ends."""
