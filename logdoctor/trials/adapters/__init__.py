"""Programs for harnesses whose own commands make no shards. Each runs by its path (`{adapters}`) where the harness is
installed, and needs nothing of logdoctor."""
