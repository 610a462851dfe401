"""Ways to touch what others made: folders, files, links, YAML, structures of unknown size."""
