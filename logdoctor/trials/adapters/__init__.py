"""Programs for harnesses whose own commands make no shards; each runs by its path (`{adapters}`).

They run where the harness is installed, and need nothing of logdoctor.
"""
