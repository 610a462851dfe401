"""Safe access to what others made: folders, files, links, YAML, structures of unknown size."""
