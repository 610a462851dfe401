"""Rules as data: their form, loading, matching and checking."""
