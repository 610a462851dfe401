"""How good plans of trials are: simulated beside the paper's policy and OpenCompass', and against a proven bound."""
