"""Volume drivers: loopfile, hostdir and tmpfs."""
