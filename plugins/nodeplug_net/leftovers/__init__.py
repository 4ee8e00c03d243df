"""What attachments leave on a node when nobody ends them, and whether somebody still needs it."""
