"""What only a GPU can show: `make gpu`, on a machine with an NVIDIA GPU and a build of PyTorch for it."""
