"""Volume drivers: loopfile, hostdir, tmpfs, image and fuse."""
