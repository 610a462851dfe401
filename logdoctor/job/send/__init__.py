"""The sender: run a command or follow files, and ship their bytes to the service. Standard library only.

It is imported on training nodes, so nothing here may import more than the standard library and `logdoctor.errors`
(zstandard is used if it is installed).
"""
