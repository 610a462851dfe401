"""Language models behind one seam, with their budget, prompts and faults."""
