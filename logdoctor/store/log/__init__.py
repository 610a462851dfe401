"""The log and its archive: the bytes of streams, and who reads them."""
