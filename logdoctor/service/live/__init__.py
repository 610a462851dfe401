"""The state of a log while it grows: its pace, its loss, and whether its job hangs."""
