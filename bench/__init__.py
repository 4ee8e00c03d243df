"""The benchmark: `make bench`. Timing lives here and never in a test.

Every comparison is a ratio within one interleaved run, because absolute milliseconds move by tens of percent between
runs of a shared machine.
"""
