"""The sender: runs a command or follows files, and ships their bytes to the service. Standard library only.

It is imported on training nodes, so nothing here imports more than the standard library and `logdoctor.errors`
(zstandard is used if installed).
"""
