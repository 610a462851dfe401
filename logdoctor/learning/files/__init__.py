"""What people do with learned rules: write them to files, bring them in from elsewhere, ask what they do to a line."""
