"""Volume drivers: loopfile, hostdir, tmpfs, image, fuse, nfs and smb."""
