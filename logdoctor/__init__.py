"""logdoctor: finds the cause of a failed training job in its log."""
