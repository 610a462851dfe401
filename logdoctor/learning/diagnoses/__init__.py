"""Write-back: a confirmed failure becomes a diagnosis rule, which is watched before it decides anything."""
