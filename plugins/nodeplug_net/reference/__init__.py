"""What the reference (containernetworking/plugins) writes into the kernel: found, removed, and written for them."""
