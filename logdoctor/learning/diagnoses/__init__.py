"""Write-back: what was confirmed of a failure becomes a diagnosis rule, watched before it decides anything."""
