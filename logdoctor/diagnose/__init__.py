"""Diagnosis: from the records of an attempt to its verdict, with its root cause, symptoms and evidence."""
