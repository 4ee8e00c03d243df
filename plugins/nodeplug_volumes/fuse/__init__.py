"""fuse: a filesystem that a program serves, such as s3fs, rclone or sshfs.

Owns: `config`, the administrator's programs and what a pod may choose; `launch` and `fusermount`, an unprivileged
program with an open FUSE connection; `room`, what belongs to one volume; `volume`, its life; `plugin`, the hooks.
Refuses: command lines, mount options and users of a pod's own.
"""
