"""What programs can print: message strings read out of source checkouts, and what the rules make of each."""
