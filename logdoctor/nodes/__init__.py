"""Deciding about nodes and acting on them: tests, policy, cordons."""
