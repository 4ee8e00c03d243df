"""The CNI front: environment and stdin in, stdout and exit status out."""
