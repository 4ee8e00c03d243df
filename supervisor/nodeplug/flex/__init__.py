"""The FlexVolume front: argv in, one JSON object out."""
