"""The sender: runs a command or follows files and ships their bytes to the service. Standard library only.

It is imported on training nodes, so nothing here may import more than the standard library and `logdoctor.errors`
(zstandard is used when it happens to be there).
"""
