"""What no rule explains: asked of past cases, then of a model, whose words are checked by code."""
