"""Dynamic Resource Allocation: the same devices, chosen by the scheduler, prepared by claims."""
