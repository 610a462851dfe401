"""What runs beside a training job, with the standard library: the sender of its log, and who starts it again."""
