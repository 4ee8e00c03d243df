"""Volume drivers: loopfile, hostdir, tmpfs and image."""
