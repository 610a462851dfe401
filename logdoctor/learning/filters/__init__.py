"""The Log Agent: reads unexplained lines, proposes filter rules, votes on them, guards and watches them."""
