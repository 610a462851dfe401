"""Quality of plans of trials: simulated beside the paper's policy and OpenCompass', and against a proven bound."""
