"""The Log Agent: reads what no rule explains, proposes filter rules, votes on them, guards and watches them."""
