"""nfs and smb: filesystems of servers, by mount(8).

Owns: `words`, which mount options a volume may have; `mounting`, mount(8) and unmounting with a time limit; `volumes`,
the hooks that both drivers share; `nfs` and `smb`, what each of them mounts.
Refuses: the protocols: kernel, mount(8) and its helpers mount.nfs and mount.cifs speak them.
"""
