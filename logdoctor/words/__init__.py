"""What is said to people: in a terminal, on pages, in tables. Pure functions of what is known."""
