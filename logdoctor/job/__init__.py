"""What runs beside a training job on the standard library alone: the log sender and the supervisor."""
