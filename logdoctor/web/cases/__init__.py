"""Past cases: failures whose cause people confirmed."""
